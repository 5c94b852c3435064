"""What a comparison measures: devices as a user names them, and the process that measures each setup."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from threading import Timer
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.model.device import check_name, usable_devices
from specdec_onnx.tui.child import Child

SYNTAX = "DEVICE, DEVICE:THREADS, TARGETDEVICE+DRAFTDEVICE or TARGETDEVICE+DRAFTDEVICE:THREADS"
_CHILD = "specdec_onnx.tui.compare.child"


@dataclass(frozen=True, slots=True)
class Setup:
    """Where target and draft run; `threads` 0 means one for each physical core."""

    name: str
    device: str
    draft_device: str | None = None
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured in every setup; `lengths` are tokens of prompt."""

    pair: str
    draft: str | None
    lengths: tuple[int, ...]
    modes: tuple[str, ...]
    max_new_tokens: int
    context: int


@dataclass
class Outcome:
    """What one process reported; `problem` says why it did not finish."""

    loaded: dict[str, Any] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    finished: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def default_setups() -> str:
    """Every usable device; if that is the CPU alone, also one thread of it."""
    usable = usable_devices()
    return ",".join(usable if len(usable) > 1 else [*usable, "cpu:1"])


def read_setups(text: str) -> list[Setup]:
    """The setups of a comma-separated list, each once. Raises SpecdecError."""
    return list({name.strip(): _setup(name.strip()) for name in text.split(",")}.values())


def _setup(name: str) -> Setup:
    devices, _, threads = name.partition(":")
    target, _, draft = devices.partition("+")
    wrong = threads and not (threads.isdecimal() and int(threads))
    if wrong or "+" in draft or (draft == "" and "+" in devices):
        raise SpecdecError(f"invalid device {name!r}", fix=f"write {SYNTAX}")
    for device in filter(None, (target, draft)):
        check_name(device)
    return Setup(name, target, draft or None, int(threads or 0))


def run_setup(
    plan: Plan, setup: Setup, timeout: float, outcome: Outcome, on_run: Callable[[str], None]
) -> None:
    """Measure one setup into `outcome`, for at most `timeout` seconds; never raises for what fails there."""
    child = Child(_CHILD)
    late = Timer(timeout, child.process.kill)
    late.start()
    try:
        child.tell({"plan": asdict(plan), "setup": asdict(setup)})
        while message := child.hear():
            event = message.pop("event", "")
            if event == "run":
                outcome.runs.append(message)
                on_run(f"{setup.name}, {message['length']} tokens, {message['mode']}")
            elif event:
                setattr(outcome, event, message)
            else:
                outcome.problem = message["error"]
        if not (outcome.finished or outcome.problem):
            outcome.problem = child.last_words()
            if late.finished.is_set():
                count = len(outcome.runs)
                runs = (
                    f"after {count} answer{'s' if count > 1 else ''}" if count else "before the first answer"
                )
                outcome.problem = f"stopped after {timeout:.0f} s, {runs}"
    finally:
        late.cancel()
        child.close()
