"""An answer's Markdown as one widget of lines.

Textual's own Markdown is a widget for each paragraph, list item and table cell, all of which are laid out again with
every frame: a conversation of seven answers took a tenth of a second a frame.
"""

import asyncio
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from specdec_onnx.tui.markdown.blocks import Block, Document
from specdec_onnx.tui.markdown.look import Look, look
from specdec_onnx.tui.markdown.render import Line, rendered

Rendered = dict[Block, list[Line]]


class AnswerText(Widget):
    """Streamed Markdown; what has not changed is neither read nor drawn again."""

    DEFAULT_CSS = "AnswerText { width: 1fr; height: auto; }"

    def __init__(self, text: str = "", *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._document = Document(text, whole=bool(text))
        self._rendered: Rendered = {}
        self._lines: list[Line] = []
        self._fitted: tuple[int, Look] | None = None

    @property
    def source(self) -> str:
        """The Markdown."""
        return self._document.text

    @property
    def plain(self) -> str:
        """The characters on view."""
        return "\n".join(line.text for line in self._lines)

    def append(self, text: str) -> None:
        """More of the answer has come."""
        if self._document.whole:  # an ended answer goes on
            self._document = Document(self.source)
        self._document.append(text)
        self._draw()

    async def finish(self, text: str) -> None:
        """Nothing more comes: read the whole text once more, which heals what streaming got wrong."""
        self._document = Document(text, whole=True)
        if self._fitted is not None:
            self._rendered = await asyncio.to_thread(
                _all, self._document.blocks, *self._fitted, self._rendered
            )
        self._draw()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Lines at this width."""
        self._fit(width)
        return len(self._lines)

    def notify_style_update(self) -> None:
        """Another theme may have been chosen."""
        super().notify_style_update()
        if self._fitted is not None and self._fitted[1] is not look(self.app):
            self._draw()

    def _fit(self, width: int) -> None:
        fitted = (width, look(self.app))
        if self._fitted != fitted:
            self._rendered, self._fitted = {}, fitted
        self._rendered = _all(self._document.blocks, *fitted, self._rendered)
        self._lines = _joined(self._document.blocks, self._rendered, width)

    def _draw(self) -> None:
        if self._fitted is None:
            return
        before, width = self._lines, self._fitted[0]
        self._fit(width)
        first = next(
            (at for at, pair in enumerate(zip(before, self._lines, strict=False)) if pair[0] is not pair[1]),
            min(len(before), len(self._lines)),
        )
        changed = Region(0, first, width, max(len(before), len(self._lines)) - first)
        if changed:
            self.refresh(changed, layout=len(before) != len(self._lines))

    def render_line(self, y: int) -> Strip:
        """A line, with the part of it that is selected."""
        if y >= len(self._lines):
            return Strip.blank(self.size.width)
        line, selection = self._lines[y], self.text_selection
        span = selection.get_span(y) if selection else None
        body = line.body if span is None else self._marked(line, *span)
        return Strip.join([line.margin, body.apply_offsets(0, y)]).apply_style(self.visual_style.rich_style)

    def _marked(self, line: Line, start: int, end: int) -> Strip:
        text = line.text
        first = cell_len(text[:start])
        last = cell_len(text if end < 0 else text[:end])
        style = self.screen.get_component_rich_style("screen--selection")
        chosen = line.body.crop(first, last)
        marked = Strip(Segment.apply_style(chosen, post_style=style), chosen.cell_length)
        return Strip.join([line.body.crop(0, first), marked, line.body.crop(last)])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected characters."""
        return selection.extract(self.plain), "\n"


def _all(blocks: list[Block], width: int, style: Look, known: Rendered) -> Rendered:
    return {block: known.get(block) or rendered(block, width, style) for block in blocks}


def _joined(blocks: list[Block], lines: Rendered, width: int) -> list[Line]:
    joined: list[Line] = []
    for block in blocks:
        if joined and block.starts:
            joined.append(_blank(width))
        joined += lines[block]
    return joined


@lru_cache(maxsize=16)
def _blank(width: int) -> Line:
    return Line(Strip([]), Strip.blank(width))
