"""From model folders to measured decoders on the devices they run on."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.pair import Pair
from specdec_onnx.runtime.machine.costs import Curve
from specdec_onnx.runtime.machine.footprint import cache_rows, check_memory, footprints
from specdec_onnx.runtime.machine.profile import Profile, known_curve, profile_model
from specdec_onnx.runtime.model.decoder import Decoder
from specdec_onnx.runtime.model.device import AUTO, Device, find_device, usable_devices

Opened = tuple[Decoder, Profile]


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


def place(
    device: str,
    opener: Callable[[Device], Opened],
    cost: Callable[[Curve], float],
    known: Callable[[Device], Curve | None],
) -> tuple[Placement, Decoder, Profile]:
    """Open and measure a model on the device of that name, for `auto` on the one where its `cost` is lowest.

    `known` returns what was measured in an earlier run, or None. Raises SpecdecError.
    """
    if device != AUTO:
        return Placement(device), *opener(find_device(device))
    costs: dict[str, float] = {}
    problems: dict[str, str] = {}
    opened: dict[str, Opened] = {}  # only the best one, to free the memory of the others
    for name in usable_devices():
        try:
            curve = known(find_device(name))
            if curve is None:
                opened[name] = opener(find_device(name))
                curve = opened[name][1].curve
            costs[name] = 1e3 * cost(curve)
        except SpecdecError as error:
            problems[name] = error.why or error.what
        best = min(costs, key=costs.__getitem__, default="")
        opened = {name: each for name, each in opened.items() if name == best}
    if not costs:
        raise SpecdecError("no device can run this model", "; ".join(problems.values()))
    if best not in opened:
        opened[best] = opener(find_device(best))
    return Placement(best, costs, problems), *opened[best]


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

    def open(self, model: ModelFolder, device: str, *, exact: bool) -> tuple[Placement, Decoder, Profile]:
        """A target (`exact`) or a draft model on the device of that name, and what was measured of it."""

        def opener(where: Device) -> Opened:
            if self._ahead is not None and not exact:
                decoder = self._ahead.result()
            else:
                decoder = self._open(model, where, exact=exact)
                wait([self._ahead] if self._ahead else [])  # nothing else may run during measurement
            on_measure = self._on_measure if exact else None
            return decoder, profile_model(model, decoder, where.fingerprint, self.threads, on_measure)

        def known(where: Device) -> Curve | None:
            return known_curve(model, where.fingerprint, self.threads, exact=exact)

        return place(device, opener, target_cost if exact else draft_cost, known)

    def check(self, pair: Pair, device: str, draft_device: str) -> None:
        """Raise SpecdecError if the models on the CPU do not fit into memory."""
        on_host = {"target": device == "cpu", "draft": draft_device == "cpu"}
        models = {"target": pair.target} | ({"draft": pair.draft} if pair.draft else {})
        needs = {role: need for role, need in footprints(models, self.context).items() if on_host[role]}
        check_memory(needs, self.context)

    def _open(self, model: ModelFolder, device: Device, *, exact: bool) -> Decoder:
        capacity = cache_rows(model, self.context)
        return Decoder.open(model, device=device, capacity=capacity, exact=exact, threads=self.threads)
