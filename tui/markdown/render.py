"""One block of Markdown to lines of the terminal, by Rich."""

import io
from functools import lru_cache
from typing import ClassVar

from rich import markdown
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
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


class _Markdown(markdown.Markdown):
    elements: ClassVar[dict[str, type[markdown.MarkdownElement]]] = {
        **markdown.Markdown.elements,
        "heading_open": _Heading,
        "list_item_open": _Item,
        "hr": _Rule,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, block: Block, look: Look) -> None:
        # Not Rich's own, which would make a parser for each block.
        self.markup, self.parsed, self.style = block.source, parse(block), "none"
        self.justify, self.hyperlinks, self.inline_code_lexer, self.inline_code_theme = None, False, None, ""
        self.code_theme = look.syntax  # type: ignore[assignment]  # Rich passes it on to Syntax, which takes both


def code(source: str, language: str, theme: object, *, starts: bool = True, ends: bool = True) -> Padding:
    """Coloured code with a margin; without a language it is plain text, as guessing would try every lexer."""
    return Padding(
        _coloured(source, language, theme), (starts, MARGIN, ends, MARGIN), style="markdown.code_block"
    )


@lru_cache(maxsize=256)
def _coloured(source: str, language: str, theme: object) -> Text:
    text = Syntax("", language, theme=theme).highlight(f"{source}\n")  # type: ignore[arg-type]
    text.right_crop(1)
    return text


def rendered(block: Block, width: int, look: Look) -> list[Line]:
    """The lines of a block, each `width` cells wide."""
    if block.language is None:
        strips = _strips(_Markdown(block, look), width, look)
        return [Line(Strip([]), strip) for strip in _without_blank_ends(strips)]
    padded = code(block.source, block.language, look.syntax, starts=block.starts, ends=block.ends)
    return [Line(strip.crop(0, MARGIN), strip.crop(MARGIN)) for strip in _strips(padded, width, look)]


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
