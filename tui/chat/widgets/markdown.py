"""An answer's Markdown as one widget of lines.

Textual's own Markdown is a widget for each paragraph, list item and table cell, all of which are laid out again with
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


TEXT = "$foreground"
MARKDOWN = {
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
PLAIN = {
    "code": "$text-warning",
    "code_block": "",
    "block_quote": "dim",
    "link_url": "dim",
    "table.border": "dim",
}
"""With the terminal's own 16 colours, which don't mix."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """Rich's styles for text, Markdown elements and code."""

    text: RichStyle
    markdown: dict[str, RichStyle]
    syntax: "SyntaxTheme"


def look(app: "App[Any]") -> Look:
    """The look of the app's current theme."""
    return _look(frozenset(app.theme_variables.items()), app.native_ansi_color, app.current_theme.dark)


@lru_cache(maxsize=8)
def _look(variables: frozenset[tuple[str, str]], ansi: bool, dark: bool) -> Look:
    from rich.syntax import ANSISyntaxTheme

    named = dict(variables)
    markdown = {**MARKDOWN, **(PLAIN if ansi else {})}
    return Look(
        _resolved(TEXT, named),
        {f"markdown.{name}": _resolved(style, named) for name, style in markdown.items()},
        ANSISyntaxTheme({token: _resolved(style, named) for token, style in _syntax(ansi, dark).items()}),
    )


def _syntax(ansi: bool, dark: bool) -> dict[Any, str]:
    from textual import highlight

    if not ansi:
        return highlight.HighlightTheme.STYLES
    themes = (highlight.ANSILightHighlightTheme, highlight.ANSIDarkHighlightTheme)
    return themes[dark].STYLES


def _resolved(text: str, variables: dict[str, str]) -> RichStyle:
    """Colours that let the background through are mixed with it; without a background of its own, the style keeps
    whatever lies below, which changes with the focus."""
    try:
        style = Style.parse(text, variables)
    except ColorParseError:  # Textual 8.2's table for code misspells a colour
        return RichStyle.null()
    below = Style(Color.parse(variables["background"]), Color.parse(variables["foreground"]))
    mixed = (below + style).rich_style
    return RichStyle(
        color=mixed.color if style.foreground is not None else None,
        bgcolor=mixed.bgcolor if style.background is not None else None,
        **{name: getattr(style, name) for name in ("bold", "dim", "italic", "underline", "strike")},
    )


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


PIECE = 12
LISTS = ("bullet_list_open", "ordered_list_open")
UNDECIDED = re.compile(r"(?<![^\n])[ \t]*[-=*+_#>`~|:.)\d]+$")
"""The beginning of a last line that the next characters may make a list, a table, a fence, or just text."""
LINES = re.compile(r"(?<=\n)")
"""Between lines as Markdown counts them; Python knows more line ends."""


@dataclass(frozen=True, slots=True)
class Block:
    """One top-level block. While it grows, code and lists are several: some of their lines or items each, so that a
    frame costs the same however long they are."""

    source: str
    """Markdown; of a code block, the code."""
    language: str | None = None
    """Of code; None for anything else."""
    starts: bool = True
    ends: bool = True
    references: str = ""
    """The link definitions of the whole text, as Markdown."""


class Document:
    """The blocks of a text. `whole` says that nothing more will come: each block is then in one piece."""

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
        """Take in more text."""
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
            self._settle(_first(tokens[tops[-1]]), lines, links, in_list=False)
        if tops:
            self._add_last(tokens[tops[-1] :], lines, links)

    def _settle(self, line: int, lines: Sequence[str], links: dict[str, Any], *, in_list: bool) -> None:
        """What is before this line of the tail will not change any more."""
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
        items = [_first(token) for token in tokens if token.type == "list_item_open" and token.level == 1]
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


def _first(token: "Token") -> int:
    return token.map[0] if token.map else 0


@cache
def parser() -> "MarkdownIt":
    """Without HTML, so that a tag is text: an answer about HTML needs that."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False, "maxNesting": 100}).enable(["strikethrough", "table"])


def parse(block: Block) -> "list[Token]":
    """The tokens of a block that isn't code. Line ends are kept. Links that only repeat their target are plain text,
    and so are pictures, which Rich draws outside of their paragraph."""
    tokens = parser().parse(f"{block.references}\n\n{block.source}")
    for token in tokens:
        token.children = token.children and list(_plainer(token.children))
    return tokens


def _plainer(children: "list[Token]") -> "Iterator[Token]":
    bare = False
    for token, after in zip_longest(children, children[1:]):
        if token.type == "link_open":
            bare = after is not None and after.content == token.attrs.get("href")
        if token.type == "softbreak":  # a model that ends a line means it
            token.type = "hardbreak"
        if token.type == "image":
            token.type, token.tag, token.children = "text", "", None
            token.content = f"{token.content} ({token.attrs['src']})"
        token.content = printable(
            token.content
        )  # `&#13;` and `<http://x/%1b>` have become control characters
        if not (bare and token.type in ("link_open", "link_close")):
            yield token


def rendered(block: Block, width: int, look: Look) -> list[Line]:
    """The lines of a block, each `width` cells wide."""
    return _markdown(block, width, look) if block.language is None else _code(block, width, look)


def _markdown(block: Block, width: int, look: Look) -> list[Line]:
    content = copy(empty(look))
    content.parsed = parse(block)
    lines = [Line(Strip([]), strip) for strip in _without_blank_ends(_strips(content, width, look))]
    if content.parsed and content.parsed[0].type == "paragraph_open" and "\n" not in block.source:
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


Rendered = dict[Block, list[Line]]


class AnswerText(LineView):
    """Streamed Markdown; what has not changed is neither read nor drawn again."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._document = Document(text, whole=bool(text))
        self._rendered: Rendered = {}

    @property
    def source(self) -> str:
        """The Markdown."""
        return self._document.text

    def append(self, text: str) -> None:
        """More of the answer has come."""
        if self._document.whole:  # an ended answer goes on
            self._document = Document(self.source)
        self._document.append(text)
        self.redraw()

    async def finish(self, text: str) -> None:
        """Nothing more comes: read the whole text once more, which heals what streaming got wrong."""
        document, fitted = Document(text, whole=True), self._fitted
        if fitted is not None:
            made = await self._made(document, fitted[0], self._rendered)
            if self._fitted == fitted:
                self._rendered = made
        self._document = document
        self.redraw()

    async def prepare(self, width: int) -> None:
        """Render the text for this width, before the widget is mounted and away from the event loop."""
        self._fitted = (width, self.colours())
        self._rendered = await self._made(self._document, width, {})

    async def _made(self, document: Document, width: int, known: Rendered) -> Rendered:
        return await asyncio.to_thread(_all, document.blocks, width, self.colours(), known)

    def colours(self) -> Look:
        """Those of the theme."""
        return look(self.app)

    def make_lines(self, width: int, *, anew: bool) -> list[Line]:
        """Blocks that are known are not rendered again."""
        known = {} if anew else self._rendered
        self._rendered = _all(self._document.blocks, width, self.colours(), known)
        lines: list[Line] = []
        for block in self._document.blocks:
            if lines and block.starts:
                lines.append(blank(width))
            lines += self._rendered[block]
        return lines


def _all(blocks: list[Block], width: int, style: Look, known: Rendered) -> Rendered:
    return {block: known[block] if block in known else rendered(block, width, style) for block in blocks}
