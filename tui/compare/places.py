"""The places to measure, as a user names them, and the process that measures each."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from threading import Timer
from typing import TYPE_CHECKING, Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.bench.prompts import built_in_prompts
from specdec_onnx.tui.child import Child

if TYPE_CHECKING:
    from specdec_onnx.models.folder import ModelFolder


SYNTAX = "DEVICE, DEVICE:THREADS, TARGETDEVICE+DRAFTDEVICE or TARGETDEVICE+DRAFTDEVICE:THREADS"


@dataclass(frozen=True, slots=True)
class Place:
    """Where target and draft run; `threads` 0 means the physical cores."""

    name: str
    device: str
    draft_device: str | None = None
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured in every place."""

    pair: str
    draft: str | None
    lengths: tuple[int, ...]
    modes: tuple[str, ...]
    max_new_tokens: int
    context: int

    def message(self, place: Place) -> dict[str, Any]:
        """The plan for one place, ready for JSON."""
        return {"plan": asdict(self), "place": asdict(place)}

    @staticmethod
    def of(message: Mapping[str, Any]) -> "tuple[Plan, Place]":
        """The other way round."""
        return Plan(**message["plan"]), Place(**message["place"])


def read_places(text: str) -> list[Place]:
    """The places of a comma-separated list, each once; SpecdecError for what is none."""
    return list({name.strip(): _place(name.strip()) for name in text.split(",")}.values())


def default_places() -> str:
    """Every usable device; beside a lone CPU also one thread of it."""
    from specdec_onnx.runtime.model.device import usable_devices

    usable = usable_devices()
    return ",".join(usable if len(usable) > 1 else [*usable, "cpu:1"])


def _place(name: str) -> Place:
    from specdec_onnx.runtime.model.device import check_name

    devices, _, threads = name.partition(":")
    target, _, draft = devices.partition("+")
    wrong = threads and not (threads.isdecimal() and int(threads))
    if wrong or "+" in draft or (draft == "" and "+" in devices):
        raise SpecdecError(f"{name!r} is no place to run", fix=f"write {SYNTAX}")
    for device in filter(None, (target, draft)):
        check_name(device)
    return Place(name, target, draft or None, int(threads or 0))


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


TASK = "\n\nWhat is the text above about? Answer in a few sentences."


def prompt_of(model: "ModelFolder", length: int) -> list[int]:
    """Token ids of a question about some text: as many as fit in `length`, or the bare question if it is longer."""
    from specdec_onnx.runtime.text.prompt import prompt_tokens

    text = "\n\n".join(turn for prompt in built_in_prompts() for turn in prompt.turns)
    text *= 1 + 8 * length // len(text)  # a token is hardly ever longer than eight characters
    fits, too_long = 0, len(text) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if len(prompt_tokens(model, text[:middle] + TASK)) <= length:
            fits = middle
        else:
            too_long = middle
    return prompt_tokens(model, text[:fits] + TASK)
