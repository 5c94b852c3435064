"""Runs a place's process and gathers what it tells, whatever becomes of it."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Timer
from typing import Any

from specdec_onnx.tui.channel import last_words
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
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            encoding="utf-8",
        )
        late = Timer(timeout, child.kill)
        late.start()
        try:
            _listen(child, plan, place, outcome, on_run)
            child.wait()
            out_of_time = late.finished.is_set()
        finally:
            late.cancel()
            child.kill()
            code = child.wait()
        if not (outcome.finished or outcome.problem):
            outcome.problem = _late(timeout, outcome) if out_of_time else last_words(said, code)


def _listen(
    child: "subprocess.Popen[str]", plan: Plan, place: Place, outcome: Outcome, on_run: Callable[[str], None]
) -> None:
    assert child.stdin and child.stdout
    with suppress(BrokenPipeError), child.stdin as pipe:
        pipe.write(json.dumps(plan.message(place)) + "\n")
    for line in child.stdout:
        message = json.loads(line)
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
