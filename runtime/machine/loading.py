"""From model folders to measured decoders on the devices they run on."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.pair import Pair
from specdec_onnx.runtime.machine.costs import Curve
from specdec_onnx.runtime.machine.footprint import cache_rows, check_memory, footprints
from specdec_onnx.runtime.machine.profile import Profile, known_curve, profile_draft, profile_target
from specdec_onnx.runtime.model.decoder import Decoder
from specdec_onnx.runtime.model.device import AUTO, Device, check_name, find_device, usable_devices

T = TypeVar("T")

Opened = tuple[Decoder, T]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model runs; for `auto`, also the milliseconds of a token on each device, and why others cannot run it."""

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
    """Seconds by which devices are compared for a target: the mean of a plain step and of verifying 3 and 7 drafts."""
    return (curve(1) + curve(4) + curve(8)) / 3


def draft_cost(curve: Curve) -> float:
    """Seconds by which devices are compared for a draft model: one token."""
    return curve(1)


class Placer(Generic[T]):
    """Opens a model with `opener`, which also measures it, on a given device or on the one where its `cost` is lowest.

    `known` returns the cost on a device from an earlier run, or None if it was never measured there.
    """

    def __init__(
        self,
        opener: Callable[[Device], Opened[T]],
        cost: Callable[[T], float],
        known: Callable[[Device], float | None] = lambda device: None,
    ) -> None:
        self._opener, self._cost, self._known = opener, cost, known

    def place(self, device: str) -> tuple[Placement, Decoder, T]:
        """The model on the device of that name, for `auto` on the fastest one. Raises SpecdecError."""
        check_name(device)
        if device != AUTO:
            return Placement(device), *self._opener(find_device(device))
        return self._fastest()

    def _fastest(self) -> tuple[Placement, Decoder, T]:
        costs: dict[str, float] = {}
        problems: dict[str, str] = {}
        opened: dict[str, Opened[T]] = {}  # only the best one, to free the memory of the others
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


class Loader:
    """Opens models with room for `context` tokens, on `threads` threads each."""

    def __init__(self, context: int, threads: int = 0, on_measure: Callable[[], None] | None = None) -> None:
        self.context, self.threads, self._on_measure = context, threads, on_measure
        self._ahead: Future[Decoder] | None = None

    def open_ahead(self, draft: ModelFolder, device: str) -> None:
        """Start to open a draft for the CPU while its target is opened: each keeps only one core busy."""
        if device == "cpu":
            executor = ThreadPoolExecutor(1)
            self._ahead = executor.submit(self._open, draft, Device(), exact=False)
            executor.shutdown(wait=False)

    def target(self, model: ModelFolder, device: str) -> tuple[Placement, Decoder, Profile]:
        """A target on the device of that name, with its costs and the verdict of its self-test."""

        def opener(place: Device) -> tuple[Decoder, Profile]:
            decoder = self._open(model, place, exact=True)
            if self._ahead is not None:
                wait([self._ahead])  # nothing else may run during measurement
            return decoder, profile_target(model, decoder, place.fingerprint, self.threads, self._on_measure)

        known = partial(self._known, model, target_cost, exact=True)
        return Placer(opener, lambda profile: target_cost(profile.curve), known).place(device)

    def draft(self, model: ModelFolder, device: str) -> tuple[Placement, Decoder, Curve]:
        """A draft model on the device of that name, with its costs."""

        def opener(place: Device) -> tuple[Decoder, Curve]:
            decoder = self._ahead.result() if self._ahead else self._open(model, place, exact=False)
            return decoder, profile_draft(model, decoder, place.fingerprint, self.threads)

        known = partial(self._known, model, draft_cost, exact=False)
        return Placer(opener, draft_cost, known).place(device)

    def check(self, pair: Pair, device: str, draft_device: str) -> None:
        """Raise SpecdecError if the models on the CPU do not fit into memory."""
        on_host = {"target": device == "cpu", "draft": draft_device == "cpu"}
        models = {"target": pair.target} | ({"draft": pair.draft} if pair.draft else {})
        needs = {role: need for role, need in footprints(models, self.context).items() if on_host[role]}
        check_memory(needs, self.context)

    def _open(self, model: ModelFolder, device: Device, *, exact: bool) -> Decoder:
        capacity = cache_rows(model, self.context)
        return Decoder.open(model, device=device, capacity=capacity, exact=exact, threads=self.threads)

    def _known(
        self, model: ModelFolder, cost: Callable[[Curve], float], device: Device, *, exact: bool
    ) -> float | None:
        curve = known_curve(model, device.fingerprint, self.threads, exact=exact)
        return None if curve is None else cost(curve)
