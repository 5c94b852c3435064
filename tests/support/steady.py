"""An engine that drafts by rule and not by the clock, so that what is drafted depends on the text alone."""

from dataclasses import dataclass
from typing import Any

from specdec_onnx.runtime.engine import Engine


@dataclass
class ScriptedSwitch:
    """The draft model is used or rests as told, not as the clock says."""

    on: bool = True

    def idle(self) -> None: ...

    def observe(self, tokens: int, plains: float) -> None: ...

    def gain(self, worth: float) -> float:
        return 0.5


def steady(engine: Engine) -> Engine:
    """Three tokens are always worth drafting, and a free one goes before the draft model's: no clock, no experience."""
    for mode in engine.modes:
        planner: Any = engine.speculation.planner(mode)
        planner.draft_switch = ScriptedSwitch()
        planner.worth_drafting = planner.worth_checking = lambda chance, drafted: drafted <= 3
        planner.gain = lambda chances: float(bool(chances))
        planner.draft_gain = lambda: 0.5
    return engine


def rest_or_draft(engine: Engine, *, rests: bool) -> None:
    """Whether the draft model rests in mode `auto`."""
    engine.speculation.planner("auto").draft_switch.on = not rests  # type: ignore[misc]
