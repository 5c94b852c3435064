"""An answer's Markdown as one widget: a document cuts the text into blocks, and Rich renders each block as lines.

Textual's own Markdown is a widget for each paragraph, list item and table cell, and lays all of them out again with
every frame: a conversation of seven answers took a tenth of a second a frame.
"""

import asyncio
import io
import re
from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

from rich import markdown
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style as RichStyle
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from textual.color import Color, ColorParseError
from textual.strip import Strip
from textual.style import Style

from specdec_onnx.models.text import printable
from specdec_onnx.tui.chat.widgets.lines import Line, LineView, blank

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from rich.syntax import SyntaxTheme
    from textual.app import App


PIECE = 12
"""Lines or items in each piece of a growing block."""
LISTS = ("bullet_list_open", "ordered_list_open")
UNDECIDED = re.compile(r"(?<![^\n])[ \t]*[-=*+_#>`~|:.)\d]+$")
"""The start of a last line that may become a list, a table, a fence or plain text with the next characters."""
LINES = re.compile(r"(?<=\n)")
"""Line ends as Markdown counts them; Python knows more."""


@dataclass(frozen=True, slots=True)
class Block:
    """One top-level block.

    Growing code and growing lists are several blocks of some lines or items each, so that a frame costs the same
    however long they are; `starts` and `ends` tell the first and the last of them.
    """

    source: str
    """Markdown; for a code block, only the code."""
    language: str | None = None
    """The language of code; None for everything else."""
    starts: bool = True
    ends: bool = True
    references: str = ""
    """The link definitions of the whole text so far, as Markdown."""


class Document:
    """A text as blocks. `whole` means that the text is complete, so that no block is cut into pieces."""

    def __init__(self, text: str = "", *, whole: bool = False) -> None:
        self.text = ""
        self.blocks: list[Block] = []
        self.whole = whole
        self._read = 0
        self._settled = 0
        self._in_list = False
        self._links: dict[str, Any] = {}
        self.append(text)

    def append(self, more: str) -> None:
        """Add text and read again what it may have changed."""
        self.text += more
        tail, links = self.text[self._read :], deepcopy(self._links)
        tokens = parser().parse(tail if self.whole else UNDECIDED.sub("", tail), links)
        self._references = "\n".join(
            f"[{name}]: <{link['href']}>" for name, link in links.get("references", {}).items()
        )
        tops = [
            at for at, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0 and token.map
        ]
        lines = LINES.split(tail)
        del self.blocks[self._settled :]
        for at in tops[:-1]:
            self._add(tokens[at], lines)
        if len(tops) > 1:
            self._settle(_first_line(tokens[tops[-1]]), lines, links, in_list=False)
        if tops:
            self._add_last(tokens[tops[-1] :], lines, links)

    def _settle(self, line: int, lines: Sequence[str], links: dict[str, Any], *, in_list: bool) -> None:
        """Never read again what is before this line of the tail."""
        self._settled, self._in_list = len(self.blocks), in_list
        self._read += len("".join(lines[:line]))
        self._links = links

    def _add(self, token: "Token", lines: Sequence[str]) -> None:
        if token.type in ("fence", "code_block"):
            self.blocks += self._code(token.content, (token.info.split() or ["text"])[0])
        else:
            self._add_source(lines[slice(*(token.map or ()))], starts=not self._in_list)
        self._in_list = False

    def _add_source(self, lines: Sequence[str], *, starts: bool) -> None:
        self.blocks.append(Block("".join(lines).rstrip("\n"), starts=starts, references=self._references))

    def _add_last(self, tokens: "Sequence[Token]", lines: Sequence[str], links: dict[str, Any]) -> None:
        items = [_first_line(token) for token in tokens if (token.type, token.level) == ("list_item_open", 1)]
        full = 0 if self.whole or tokens[0].type not in LISTS else (len(items) - 1) // PIECE * PIECE
        in_list = self._in_list
        for at in range(0, full, PIECE):
            self._add_source(lines[items[at] : items[at + PIECE]], starts=not in_list)
            in_list = True
        if full:
            end = tokens[0].map[1] if tokens[0].map else len(lines)
            self._settle(items[full], lines, links, in_list=True)
            self._add_source(lines[items[full] : end], starts=False)
        else:
            self._add(tokens[0], lines)
            self._in_list = in_list

    def _code(self, code: str, language: str) -> Iterator[Block]:
        lines = code.rstrip("\n").split("\n")
        size = len(lines) if self.whole else PIECE
        for at in range(0, len(lines), size):
            piece = "\n".join(lines[at : at + size])
            yield Block(piece, language, starts=at == 0, ends=at + size >= len(lines))


def _first_line(token: "Token") -> int:
    return token.map[0] if token.map else 0


@cache
def parser() -> "MarkdownIt":
    """Return a parser without HTML: an answer about HTML needs its tags as text."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False, "maxNesting": 100}).enable(["strikethrough", "table"])


ELEMENTS = {
    "h1": "bold underline $text-primary",
    "h2": "bold $text-primary",
    "h3": "bold",
    "h4": "bold italic",
    "h5": "italic",
    "h6": "italic",
    "em": "italic",
    "strong": "bold",
    "s": "strike",
    "code": "$text-warning 95% on $warning 10%",
    "code_block": "on $foreground 5%",
    "block_quote": "$text-muted",
    "item.bullet": "$text-primary",
    "item.number": "$text-primary",
    "hr": "$secondary",
    "link": "$text-primary underline",
    "link_url": "$text-muted",
    "table.border": "$foreground 30%",
    "table.header": "bold $text-primary",
}
ELEMENTS_ANSI = {
    "code": "$text-warning",
    "code_block": "",
    "block_quote": "dim",
    "link_url": "dim",
    "table.border": "dim",
}
"""What differs with the terminal's own 16 colours, which can't be mixed."""


@dataclass(frozen=True, slots=True, eq=False)
class Styles:
    """Rich's styles for text, Markdown elements and code, taken from a theme."""

    text: RichStyle
    markdown: dict[str, RichStyle]
    syntax: "SyntaxTheme"


def theme_styles(app: "App[Any]") -> Styles:
    """Return the styles of the app's current theme."""
    return _theme_styles(
        frozenset(app.theme_variables.items()), app.native_ansi_color, app.current_theme.dark
    )


@lru_cache(maxsize=8)
def _theme_styles(variables: frozenset[tuple[str, str]], ansi: bool, dark: bool) -> Styles:
    from rich.syntax import ANSISyntaxTheme

    named = dict(variables)
    elements = {**ELEMENTS, **(ELEMENTS_ANSI if ansi else {})}
    return Styles(
        _rich_style("$foreground", named),
        {f"markdown.{name}": _rich_style(style, named) for name, style in elements.items()},
        ANSISyntaxTheme(
            {token: _rich_style(style, named) for token, style in _syntax_styles(ansi, dark).items()}
        ),
    )


def _syntax_styles(ansi: bool, dark: bool) -> dict[Any, str]:
    from textual import highlight

    if not ansi:
        return highlight.HighlightTheme.STYLES
    return (highlight.ANSIDarkHighlightTheme if dark else highlight.ANSILightHighlightTheme).STYLES


def _rich_style(text: str, variables: dict[str, str]) -> RichStyle:
    """Mix transparent colours with the theme's background, because Rich has none.

    A style without a background keeps the one below it, which changes with the focus.
    """
    try:
        style = Style.parse(text, variables)
    except ColorParseError:  # Textual 8.2 misspells a colour in its table for code
        return RichStyle.null()
    below = Style(Color.parse(variables["background"]), Color.parse(variables["foreground"]))
    mixed = (below + style).rich_style
    return RichStyle(
        color=mixed.color if style.foreground is not None else None,
        bgcolor=mixed.bgcolor if style.background is not None else None,
        **{name: getattr(style, name) for name in ("bold", "dim", "italic", "underline", "strike")},
    )


MARGIN = 2
"""Cells to the left and right of code."""
CELL = 3
"""Smallest width of a table column with its padding; Rich drops columns that don't fit."""


class _Heading(markdown.Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _Rule(markdown.HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr")


class _Code(markdown.CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield highlighted(str(self.text).rstrip("\n"), self.lexer_name, self.theme)


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
    """Rich's Markdown with the elements above."""

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
def _empty(styles: Styles) -> Markdown:
    """Return Markdown without text, to be copied: a new one makes a parser, which takes longer than most blocks."""
    # Markdown declares fewer kinds of themes than Syntax, which gets them from it.
    return Markdown("", code_theme=styles.syntax, hyperlinks=False)  # type: ignore[arg-type]


def highlighted(
    source: str, language: str, theme: object, *, starts: bool = True, ends: bool = True
) -> Padding:
    """Highlight code and give it a margin; without a language it stays plain, because guessing would try every lexer."""
    return Padding(
        _highlight(source, language, theme), (starts, MARGIN, ends, MARGIN), style="markdown.code_block"
    )


@lru_cache(maxsize=256)
def _highlight(source: str, language: str, theme: object) -> Text:
    syntax = Syntax("", language, theme=theme, word_wrap=True)  # type: ignore[arg-type]
    text = syntax.highlight(f"{source}\n")
    text.right_crop(1)
    return text


def render(block: Block, width: int, styles: Styles) -> list[Line]:
    """Render a block as lines, each `width` cells wide."""
    return (_rendered_markdown if block.language is None else _rendered_code)(block, width, styles)


def _rendered_markdown(block: Block, width: int, styles: Styles) -> list[Line]:
    content = copy(_empty(styles))
    content.parsed = parse(block)
    lines = [Line(Strip([]), strip) for strip in _without_blank_ends(_strips(content, width, styles))]
    if content.parsed and content.parsed[0].type == "paragraph_open" and "\n" not in block.source:
        return [*lines[:1], *(line._replace(joint=" ") for line in lines[1:])]
    return lines


def _rendered_code(block: Block, width: int, styles: Styles) -> list[Line]:
    padded = highlighted(
        block.source, block.language or "", styles.syntax, starts=block.starts, ends=block.ends
    )
    lines = [Line(strip.crop(0, MARGIN), strip.crop(MARGIN)) for strip in _strips(padded, width, styles)]
    inside = slice(int(block.starts), len(lines) - int(block.ends))
    joints = _joints([line.text for line in lines[inside]], block.source)
    lines[inside] = [line._replace(joint=joint) for line, joint in zip(lines[inside], joints, strict=True)]
    return lines


def _joints(rendered: list[str], source: str) -> list[str]:
    """What the source has before each rendered line: a line end, or the blanks at which a line was wrapped."""
    joints, sources, rest = list[str](), iter(source.split("\n")), ""
    for text in rendered:
        if rest.strip():
            joints.append(rest[: len(rest) - len(rest.lstrip())])
        else:
            joints.append("\n")
            rest = next(sources, "")
        rest = _skip(rest, len("".join(text.split())))
    return joints


def _skip(text: str, count: int) -> str:
    """Return what follows the first `count` characters that aren't blank."""
    for at, character in enumerate(text):
        if not count:
            return text[at:]
        count -= not character.isspace()
    return ""


def _strips(content: RenderableType, width: int, styles: Styles) -> list[Strip]:
    console = _console(width, styles)
    return [Strip(line, width) for line in console.render_lines(content, style=styles.text)]


@lru_cache(maxsize=8)
def _console(width: int, styles: Styles) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        height=1,
        color_system="truecolor",
        force_terminal=True,
        legacy_windows=False,
        theme=Theme(styles.markdown),
    )


def _without_blank_ends(strips: list[Strip]) -> list[Strip]:
    filled = [at for at, strip in enumerate(strips) if strip.text.strip()]
    return strips[filled[0] : filled[-1] + 1] if filled else []


def parse(block: Block) -> "list[Token]":
    """Parse a block that isn't code.

    Line ends are kept. Links whose text is their target become plain text, and so do images, which Rich draws outside
    of their paragraph.
    """
    tokens = parser().parse(f"{block.references}\n\n{block.source}")
    for token in tokens:
        token.children = token.children and list(_simplified(token.children))
    return tokens


def _simplified(children: "list[Token]") -> "Iterator[Token]":
    repeats_target = False
    for token, next_token in zip_longest(children, children[1:]):
        if token.type == "link_open":
            repeats_target = next_token is not None and next_token.content == token.attrs.get("href")
        if token.type == "softbreak":  # a model that ends a line means it
            token.type = "hardbreak"
        if token.type == "image":
            token.type, token.tag, token.children = "text", "", None
            token.content = f"{token.content} ({token.attrs['src']})"
        # `&#13;` and `<http://x/%1b>` have become control characters.
        token.content = printable(token.content)
        if not (repeats_target and token.type in ("link_open", "link_close")):
            yield token


Rendered = dict[Block, list[Line]]


class AnswerText(LineView):
    """Streamed Markdown; what has not changed is neither parsed nor rendered again."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._document = Document(text, whole=bool(text))
        self._rendered: Rendered = {}

    @property
    def source(self) -> str:
        """The Markdown text."""
        return self._document.text

    def append(self, text: str) -> None:
        """Add streamed text."""
        if self._document.whole:  # a finished answer is being continued
            self._document = Document(self.source)
        self._document.append(text)
        self.redraw()

    async def finish(self, text: str) -> None:
        """Parse the complete text once more, which corrects what streaming got wrong."""
        document, fitted = Document(text, whole=True), self._fitted
        if fitted is not None:
            rendered = await self._render_in_thread(document, fitted[0], self._rendered)
            if self._fitted == fitted:
                self._rendered = rendered
        self._document = document
        self.redraw()

    async def prepare(self, width: int) -> None:
        """Render the text for this width before the widget is mounted, away from the event loop."""
        self._fitted = (width, self.appearance())
        self._rendered = await self._render_in_thread(self._document, width, {})

    async def _render_in_thread(self, document: Document, width: int, known: Rendered) -> Rendered:
        return await asyncio.to_thread(_render_all, document.blocks, width, self.appearance(), known)

    def appearance(self) -> Styles:
        """Return the styles of the current theme."""
        return theme_styles(self.app)

    def make_lines(self, width: int, *, reuse: bool) -> list[Line]:
        """Join the lines of all blocks, with a blank line between them."""
        known = self._rendered if reuse else {}
        self._rendered = _render_all(self._document.blocks, width, self.appearance(), known)
        lines: list[Line] = []
        for block in self._document.blocks:
            if lines and block.starts:
                lines.append(blank(width))
            lines += self._rendered[block]
        return lines


def _render_all(blocks: list[Block], width: int, styles: Styles, known: Rendered) -> Rendered:
    return {block: known[block] if block in known else render(block, width, styles) for block in blocks}
