"""One block of Markdown to lines of the terminal, by Rich."""

import io
from copy import copy
from functools import lru_cache

from rich.console import Console, RenderableType
from rich.theme import Theme
from textual.strip import Strip

from specdec_onnx.tui.markdown.blocks import Block, parse
from specdec_onnx.tui.markdown.elements import MARGIN, code, empty
from specdec_onnx.tui.markdown.look import Look
from specdec_onnx.tui.widgets.lines import Line


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
