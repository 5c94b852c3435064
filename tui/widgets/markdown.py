"""An answer's Markdown as one widget of lines.

Textual's own Markdown is a widget for each paragraph, list item and table cell, all of which are laid out again with
every frame: a conversation of seven answers took a tenth of a second a frame.
"""

import asyncio

from specdec_onnx.tui.markdown.blocks import Block, Document
from specdec_onnx.tui.markdown.look import Look, look
from specdec_onnx.tui.markdown.render import rendered
from specdec_onnx.tui.widgets.lines import Line, LineView, blank

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
