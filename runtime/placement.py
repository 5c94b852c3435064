"""On which device each model runs: the one asked for, or the fastest by measurement."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.costs import Curve
from specdec_onnx.runtime.decoder import Decoder
from specdec_onnx.runtime.device import AUTO, Device, check_name, find_device, usable_devices

T = TypeVar("T")

Opened = tuple[Decoder, T]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model runs; for `auto`, what a token costs on each device, and why others were left out."""

    device: str
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.milliseconds:
            return self.device
        measured = ", ".join(f"{name} {cost:.1f} ms" for name, cost in self.milliseconds.items())
        left_out = "".join(f"; not {name}: {why}" for name, why in self.problems.items())
        return f"{self.device} (measured: {measured}{left_out})"


def target_cost(curve: Curve) -> float:
    """Seconds by which targets are compared: the mean of a plain step and of verifying three and seven drafts."""
    return (curve(1) + curve(4) + curve(8)) / 3


def draft_cost(curve: Curve) -> float:
    """Seconds by which drafts are compared: one token."""
    return curve(1)


class Placer(Generic[T]):
    """Opens a model with `opener`, which also measures it, where it was asked for or where `cost` is lowest.

    `known` tells the cost on a device from an earlier run, None when it was never measured there.
    """

    def __init__(
        self,
        opener: Callable[[Device], Opened[T]],
        cost: Callable[[T], float],
        known: Callable[[Device], float | None] = lambda device: None,
    ) -> None:
        self._opener, self._cost, self._known = opener, cost, known

    def place(self, asked: str) -> tuple[Placement, Decoder, T]:
        """The model on the device called `asked`, or for `auto` on the fastest one. Raises SpecdecError."""
        check_name(asked)
        if asked != AUTO:
            return Placement(asked), *self._opener(find_device(asked))
        return self._fastest()

    def _fastest(self) -> tuple[Placement, Decoder, T]:
        costs: dict[str, float] = {}
        problems: dict[str, str] = {}
        opened: dict[str, Opened[T]] = {}  # at most the best one: the others' memory is let go
        for name in usable_devices():
            try:
                costs[name] = self._measure(find_device(name), opened)
            except SpecdecError as error:
                problems[name] = error.why or error.what
            best = min(costs, key=costs.__getitem__, default="")
            opened = {name: pair for name, pair in opened.items() if name == best}
        if not costs:
            raise SpecdecError("no device can run this model", "; ".join(problems.values()))
        if best not in opened:
            opened[best] = self._opener(find_device(best))
        placement = Placement(best, {name: 1e3 * cost for name, cost in costs.items()}, problems)
        return placement, *opened[best]

    def _measure(self, device: Device, opened: dict[str, Any]) -> float:
        if (known := self._known(device)) is not None:
            return known
        opened[device.name] = self._opener(device)
        return self._cost(opened[device.name][1])
