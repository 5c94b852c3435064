"""Runs a place's process and gathers what it tells, whatever becomes of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Timer
from typing import Any

from specdec_onnx.tui.child import Child
from specdec_onnx.tui.compare.spec import Place, Plan

_CHILD = "specdec_onnx.tui.compare.child"


@dataclass
class Outcome:
    """What one process found; `problem` says why it did not find everything."""

    loaded: dict[str, Any] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    finished: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def run_place(
    plan: Plan,
    place: Place,
    timeout: float,
    outcome: Outcome,
    on_run: Callable[[str], None] = lambda what: None,
) -> None:
    """Measure one place, at most `timeout` seconds long, into `outcome`; never raises for what goes wrong there."""
    child = Child(_CHILD)
    late = Timer(timeout, child.process.kill)
    late.start()
    try:
        child.tell(plan.message(place))
        _listen(child, place, outcome, on_run)
        if not (outcome.finished or outcome.problem):
            why = child.last_words()
            outcome.problem = _late(timeout, outcome) if late.finished.is_set() else why
    finally:
        late.cancel()
        child.close()


def _listen(child: Child, place: Place, outcome: Outcome, on_run: Callable[[str], None]) -> None:
    while message := child.hear():
        event = message.pop("event")
        if event == "run":
            outcome.runs.append(message)
            on_run(f"{place.name}, {message['length']} tokens, {message['mode']}")
        elif event == "failed":
            outcome.problem = message["problem"]
        else:
            setattr(outcome, event, message)


def _late(timeout: float, outcome: Outcome) -> str:
    measured = f"after {len(outcome.runs)} answers" if outcome.runs else "before the first answer"
    return f"it was stopped after {timeout:.0f} s, {measured}"
