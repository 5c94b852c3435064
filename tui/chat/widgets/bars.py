"""The single lines: what is open (top), what the answer costs and which keys there are (bottom)."""

from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult, RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from specdec_onnx.models.text import on_one_line
from specdec_onnx.tui.chat.reply import figures, meter, sparkline

SMALLEST_SPARKLINE = 4
SMALLEST_TEXT = 4
GAP = 3
METER, WIDE = 8, 60
"""Cells of the context meter, and of a line that has room for it."""


class TopBar(Widget):
    """Conversation on the left, model and context meter on the right."""

    heading = reactive("")
    model = reactive("")
    used = reactive(0)
    limit = reactive(0)

    def render(self) -> RenderResult:
        """One line, the title shortened first, but for a model that takes half of it."""
        width = self.size.width
        used = meter(self.used, self.limit, METER if width >= WIDE else 0).strip()
        context = f"{' ' * GAP}ctx {used}" if self.limit else ""
        model = shortened(self.model, width // 2)
        right = Content.assemble(model, context).stylize("$text-muted")
        title = shortened(self.heading, width - right.cell_length - GAP)
        gap = max(1, width - title.cell_length - right.cell_length)
        return Content.assemble(title.stylize("bold"), " " * gap, right)


def shortened(text: str, room: int) -> Content:
    """What fits into so many cells, with dots where something is missing; in less than a few cells, nothing."""
    shown = Content(on_one_line(text))
    return shown.truncate(room, ellipsis=True) if room >= SMALLEST_TEXT else Content()


class StatisticsBar(Widget):
    """Figures of the answer under way or of the last one, a sparkline, and why speculation is off."""

    statistics: reactive[Mapping[str, Any]] = reactive(dict)
    remark = reactive("")

    def render(self) -> RenderResult:
        """Figures, then the remark, then as much sparkline as fits."""
        text = figures(self.statistics) if self.statistics.get("new_tokens") else ""
        remark = (" · " if text else "") + self.remark if self.remark else ""
        rounds = self.statistics.get("tokens_by_round", ())
        room = self.size.width - len(text) - len(remark) - 2
        bars = sparkline(rounds, room) if room >= SMALLEST_SPARKLINE else ""
        return Content.assemble(
            text, (remark, "$text-warning"), "  " if bars else "", (bars, "$text-success")
        )


class KeyBar(Footer):
    """The keys that fit as a whole; those of a selected turn come first."""

    def compose(self) -> ComposeResult:
        """The palette has its place on the right."""
        keys = [key for key in super().compose() if isinstance(key, FooterKey)]
        palette = [key for key in keys if key.has_class("-command-palette")]
        room = self.app.size.width - sum(map(_cells, palette))
        for key in keys:
            if key in palette or _cells(key) <= room:
                room -= 0 if key in palette else _cells(key)
                yield key

    def on_resize(self, event: events.Resize) -> None:
        """There may be room for more, or for less."""
        self.call_after_refresh(self.recompose)


def _cells(key: FooterKey) -> int:
    """With the blank between key and word, and the one behind it."""
    return cell_len(key.key_display) + cell_len(key.description) + 2
