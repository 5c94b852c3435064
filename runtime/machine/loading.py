"""From model folders to measured decoders on the devices they run on."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import Pair
from specdec_onnx.runtime.machine.costs import Curve
from specdec_onnx.runtime.machine.footprint import cache_rows, check_memory, footprints
from specdec_onnx.runtime.machine.profile import Profile, known_curve, profile_model
from specdec_onnx.runtime.model.decoder import Decoder
from specdec_onnx.runtime.model.device import AUTO, Device, find_device, usable_devices


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


class Loaded(NamedTuple):
    """A model that is ready to run: where it runs, and what was measured of it there."""

    placement: Placement
    decoder: Decoder
    profile: Profile


def target_cost(curve: Curve) -> float:
    """Seconds by which devices are compared for a target: the mean of a plain step and of verifying 3 and 7 drafts."""
    return (curve(1) + curve(4) + curve(8)) / 3


def draft_cost(curve: Curve) -> float:
    """Seconds by which devices are compared for a draft model: one token."""
    return curve(1)


def place(
    device: str,
    opener: Callable[[Device], tuple[Decoder, Profile]],
    cost: Callable[[Curve], float],
    known: Callable[[Device], Curve | None],
) -> Loaded:
    """Open and measure a model on the device of that name, for `auto` on the one where its `cost` is lowest.

    `known` returns what was measured in an earlier run, or None. Raises SpecdecError.
    """
    if device != AUTO:
        return Loaded(Placement(device), *opener(find_device(device)))
    costs: dict[str, float] = {}
    problems: dict[str, str] = {}
    opened: dict[str, tuple[Decoder, Profile]] = {}  # only the best one, to free the memory of the others
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
    return Loaded(Placement(best, costs, problems), *opened[best])


def load_models(
    pair: Pair,
    device: str,
    draft_device: str,
    context: int,
    threads: int = 0,
    on_measure: Callable[[], None] | None = None,
    *,
    half_cache: bool = True,
) -> dict[str, Loaded]:
    """Open target and draft, by role, on the devices of these names, and measure them.

    They have room for `context` tokens, in float16 if they can and `half_cache` allows it, and run on `threads` threads
    each. Raises SpecdecError, also if those on the CPU do not fit into memory.
    """
    models = pair.models
    devices = {"target": device, "draft": draft_device}
    needs = footprints(models, context, half_cache=half_cache)
    check_memory({role: need for role, need in needs.items() if devices[role] == "cpu"}, context)

    def decoder(role: str, where: Device) -> Decoder:
        rows, exact = cache_rows(models[role], context), role == "target"
        return Decoder.open(
            models[role], device=where, capacity=rows, exact=exact, threads=threads, half_cache=half_cache
        )

    ahead: Future[Decoder] | None = None
    if pair.draft and draft_device == "cpu":  # while the target is opened: each keeps only one core busy
        executor = ThreadPoolExecutor(1)
        ahead = executor.submit(decoder, "draft", Device())
        executor.shutdown(wait=False)

    def opener(role: str, where: Device) -> tuple[Decoder, Profile]:
        if role == "draft":
            opened = ahead.result() if ahead else decoder(role, where)
            return opened, profile_model(models[role], opened, where.fingerprint, threads)
        opened = decoder(role, where)
        wait([ahead] if ahead else [])  # nothing else may run during measurement
        return opened, profile_model(models[role], opened, where.fingerprint, threads, on_measure)

    def known(role: str, where: Device) -> Curve | None:
        return known_curve(models[role], where.fingerprint, threads, exact=role == "target")

    costs = {"target": target_cost, "draft": draft_cost}
    return {
        role: place(devices[role], partial(opener, role), costs[role], partial(known, role))
        for role in models
    }
