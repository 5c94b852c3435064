"""Markdown's elements where we want them other than Rich has them."""

from functools import lru_cache
from typing import ClassVar

from rich import markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from specdec_onnx.tui.markdown.look import Look

MARGIN = 2
"""Cells left and right of code."""
CELL = 3
"""Least width of a table's column with its padding; Rich leaves out columns that find no room."""


class _Heading(markdown.Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _Rule(markdown.HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr")


class _Code(markdown.CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield code(str(self.text).rstrip("\n"), self.lexer_name, self.theme)


class _Item(markdown.ListItem):
    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return self._beside(" • ", "markdown.item.bullet", console, options)

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        label = f"{number}. ".rjust(len(str(last_number)) + 3)
        return self._beside(label, "markdown.item.number", console, options)

    def _beside(self, label: str, style: str, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.update(width=max(1, options.max_width - len(label)))
        for number, line in enumerate(console.render_lines(self.elements, room, style=self.style)):
            yield Segment(" " * len(label) if number else label, console.get_style(style))
            yield from line
            yield Segment.line()


class _Table(markdown.TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = [self.header.row] if self.header and self.header.row else []
        rows = [*head, *(self.body.rows if self.body else ())]
        if any(len(row.cells) * CELL > options.max_width for row in rows):
            yield from (Text(" | ").join(cell.content for cell in row.cells) for row in rows)
            return
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
            yield table


class Markdown(markdown.Markdown):
    elements: ClassVar[dict[str, type[markdown.MarkdownElement]]] = {
        **markdown.Markdown.elements,
        "heading_open": _Heading,
        "list_item_open": _Item,
        "table_open": _Table,
        "hr": _Rule,
        "fence": _Code,
        "code_block": _Code,
    }


@lru_cache(maxsize=8)
def empty(look: Look) -> Markdown:
    """Markdown without text, to be copied: Rich makes a parser for each, which takes longer than most blocks."""
    # Its type for themes is narrower than that of Syntax, which it passes them on to.
    return Markdown("", code_theme=look.syntax, hyperlinks=False)  # type: ignore[arg-type]


def code(source: str, language: str, theme: object, *, starts: bool = True, ends: bool = True) -> Padding:
    """Coloured code with a margin; without a language it is plain text, as guessing would try every lexer."""
    return Padding(
        _coloured(source, language, theme), (starts, MARGIN, ends, MARGIN), style="markdown.code_block"
    )


@lru_cache(maxsize=256)
def _coloured(source: str, language: str, theme: object) -> Text:
    syntax = Syntax("", language, theme=theme, word_wrap=True)  # type: ignore[arg-type]
    text = syntax.highlight(f"{source}\n")
    text.right_crop(1)
    return text
