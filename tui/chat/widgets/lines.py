"""A widget made of lines: only lines that changed are drawn again, and their text can be selected with the mouse."""

from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget


class Line(NamedTuple):
    """One line on the screen: a margin, which is never copied, and the body.

    `joint` joins the line to the one above when both are copied: a line end, or blanks if the text was wrapped there.
    """

    margin: Strip
    body: Strip
    joint: str = "\n"

    @property
    def text(self) -> str:
        """The text that can be selected."""
        return self.body.text.rstrip()


class LineView(Widget):
    """A widget as high as its lines. A subclass makes the lines and calls `redraw` when they have changed."""

    DEFAULT_CSS = "LineView { width: 1fr; height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        self.auto_links = False
        self._lines: list[Line] = []
        self._fitted: tuple[int, object] | None = None
        self._stale = True

    def appearance(self) -> object:
        """Return everything but the width that decides what lines look like, to be compared."""
        raise NotImplementedError

    def make_lines(self, width: int, *, reuse: bool) -> list[Line]:
        """Return all lines, each `width` cells wide.

        With `reuse`, width and appearance are those of the last call: lines that stay the same must be the same
        objects as before.
        """
        raise NotImplementedError

    @property
    def plain(self) -> str:
        """The text of all lines."""
        return "\n".join(line.text for line in self._lines)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines at this width."""
        self._fit(width)
        return len(self._lines)

    def notify_style_update(self) -> None:
        """Redraw if another theme was chosen."""
        super().notify_style_update()
        if self._fitted is not None and self._fitted[1] != self.appearance():
            self.redraw()

    def redraw(self) -> None:
        """Make the lines again and draw those that changed."""
        self._stale = True
        if self._fitted is None or not self.display:
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

    def _fit(self, width: int) -> None:
        if self._stale or self._fitted is None or self._fitted[0] != width:
            fitted = (width, self.appearance())
            self._lines = self.make_lines(width, reuse=self._fitted == fitted)
            self._fitted, self._stale = fitted, False

    def render_line(self, y: int) -> Strip:
        """Draw a line, with its selected part marked."""
        if y >= len(self._lines):
            return Strip.blank(self.size.width)
        line, selection = self._lines[y], self.text_selection
        span = selection.get_span(y) if selection else None
        body = line.body if span is None else self._highlight(line, *span)
        return Strip.join([line.margin, body.apply_offsets(0, y)]).apply_style(self.visual_style.rich_style)

    def _highlight(self, line: Line, start: int, end: int) -> Strip:
        text = line.text
        first, last = cell_len(text[:start]), cell_len(text if end < 0 else text[:end])
        style = self.screen.get_component_rich_style("screen--selection")
        selected = line.body.crop(first, last)
        highlighted = Strip(Segment.apply_style(selected, post_style=style), selected.cell_length)
        return Strip.join([line.body.crop(0, first), highlighted, line.body.crop(last)])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text, unwrapped."""
        parts: list[str] = []
        for y, line in enumerate(self._lines):
            if (span := selection.get_span(y)) is not None:
                parts += [line.joint] if parts else []
                parts.append(line.text[span[0] : None if span[1] < 0 else span[1]])
        return "".join(parts), "\n"


@lru_cache(maxsize=16)
def blank(width: int) -> Line:
    """Return an empty line."""
    return Line(Strip([]), Strip.blank(width))
