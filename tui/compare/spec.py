"""What to measure: the places that a user names, and the plan that each place's process gets."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specdec_onnx.models.errors import SpecdecError

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
    from specdec_onnx.runtime.device import usable_devices

    usable = usable_devices()
    return ",".join(usable if len(usable) > 1 else [*usable, "cpu:1"])


def _place(name: str) -> Place:
    from specdec_onnx.runtime.device import check_name

    devices, _, threads = name.partition(":")
    target, _, draft = devices.partition("+")
    wrong = threads and not (threads.isdecimal() and int(threads))
    if wrong or "+" in draft or (draft == "" and "+" in devices):
        raise SpecdecError(f"{name!r} is no place to run", fix=f"write {SYNTAX}")
    for device in filter(None, (target, draft)):
        check_name(device)
    return Place(name, target, draft or None, int(threads or 0))
