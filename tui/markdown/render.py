"""One block of Markdown to lines of the terminal, by Rich."""

import io
from copy import copy
from functools import lru_cache
from typing import ClassVar

from rich import markdown
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from textual.strip import Strip

from specdec_onnx.tui.markdown.blocks import Block, parse
from specdec_onnx.tui.markdown.look import Look
from specdec_onnx.tui.widgets.lines import Line

MARGIN = 2
"""Cells left and right of code."""


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
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
            yield table


class _Markdown(markdown.Markdown):
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
def _empty(look: Look) -> _Markdown:
    # Rich makes a parser for each Markdown, which takes longer than most blocks; this one is copied. Its type for
    # themes is narrower than that of Syntax, which it passes them on to.
    return _Markdown("", code_theme=look.syntax, hyperlinks=False)  # type: ignore[arg-type]


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


def rendered(block: Block, width: int, look: Look) -> list[Line]:
    """The lines of a block, each `width` cells wide."""
    return _markdown(block, width, look) if block.language is None else _code(block, width, look)


def _markdown(block: Block, width: int, look: Look) -> list[Line]:
    content = copy(_empty(look))
    content.parsed = parse(block)
    lines = [Line(Strip([]), strip) for strip in _without_blank_ends(_strips(content, width, look))]
    if content.parsed and content.parsed[0].type == "paragraph_open" and "  \n" not in block.source:
        return [*lines[:1], *(line._replace(joint=" ") for line in lines[1:])]
    return lines


def _code(block: Block, width: int, look: Look) -> list[Line]:
    padded = code(block.source, block.language or "", look.syntax, starts=block.starts, ends=block.ends)
    lines = [Line(strip.crop(0, MARGIN), strip.crop(MARGIN)) for strip in _strips(padded, width, look)]
    inside = slice(int(block.starts), len(lines) - int(block.ends))
    joints = _joints([line.text for line in lines[inside]], block.source)
    lines[inside] = [line._replace(joint=joint) for line, joint in zip(lines[inside], joints, strict=True)]
    return lines


def _joints(shown: list[str], source: str) -> list[str]:
    """What the source has before each shown line: a line end, or where a line was wrapped, the blanks there."""
    joints, sources, rest = list[str](), iter(source.split("\n")), ""
    for text in shown:
        if rest.strip():
            joints.append(rest[: len(rest) - len(rest.lstrip())])
        else:
            joints.append("\n")
            rest = next(sources, "")
        rest = _after(rest, len("".join(text.split())))
    return joints


def _after(text: str, count: int) -> str:
    """What follows so many characters that are not blank."""
    for at, character in enumerate(text):
        if not count:
            return text[at:]
        count -= not character.isspace()
    return ""


def _strips(content: RenderableType, width: int, look: Look) -> list[Strip]:
    console = _console(width, look)
    return [Strip(line, width) for line in console.render_lines(content, style=look.text)]


@lru_cache(maxsize=8)
def _console(width: int, look: Look) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        height=1,
        color_system="truecolor",
        force_terminal=True,
        legacy_windows=False,
        theme=Theme(look.markdown),
    )


def _without_blank_ends(strips: list[Strip]) -> list[Strip]:
    filled = [at for at, strip in enumerate(strips) if strip.text.strip()]
    return strips[filled[0] : filled[-1] + 1] if filled else []
