"""The two single lines: what is open (top) and what the answer costs (bottom)."""

from collections.abc import Mapping
from typing import Any

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from specdec_onnx.tui.figures import figures, meter, sparkline

SMALLEST_SPARKLINE = 4


class TopBar(Widget):
    """Conversation on the left, model and context meter on the right."""

    heading = reactive("")
    model = reactive("")
    used = reactive(0)
    limit = reactive(0)

    def render(self) -> RenderResult:
        """One line, the title shortened first."""
        right = self.model
        if self.limit:
            right += f"   ctx {meter(self.used, self.limit)}"
        room = max(0, self.size.width - len(right) - 3)
        title = self.heading if len(self.heading) <= room else self.heading[: max(0, room - 1)] + "…"
        gap = max(1, self.size.width - len(title) - len(right))
        return Content.assemble((title, "bold"), " " * gap, (right, "$text-muted"))


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
