"""Measures one place in a process of its own, so that a crash or a missing provider ends nothing else.

The plan comes in as one JSON line; each finding goes out as one, so that what was found before a crash is kept.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import peak_memory
from specdec_onnx.tui.child import first_line, incoming, open_channel, say
from specdec_onnx.tui.compare.places import Place, Plan, prompt_of

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine


POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Zone:
    """One processor package's counter, in microjoules; it starts again at 0 behind `limit`."""

    counter: Path
    limit: int

    def read(self) -> int:
        """The counter now."""
        return int(self.counter.read_text())


class Meter:
    """Reads the counters of all processor packages. They count whatever runs, other programs too."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self.problem = ""
        self._zones: list[Zone] = []
        try:
            self._zones = [_zone(name.parent) for name in root.glob("*/name") if _is_package(name)]
        except PermissionError:
            self.problem = f"only root may read the energy counters in {root}"
        except (OSError, ValueError) as error:
            self.problem = f"the energy counters in {root} cannot be read: {error}"
        if not self._zones and not self.problem:
            self.problem = "this machine shows no energy counters"

    def read(self) -> Mapping[Zone, int]:
        """The state to measure from."""
        return {zone: zone.read() for zone in self._zones}

    def joules_since(self, before: Mapping[Zone, int]) -> float | None:
        """Joules used since `before`; None where nobody counts them."""
        if not self._zones:
            return None
        return sum((zone.read() - start) % (zone.limit + 1) for zone, start in before.items()) / 1e6


def _is_package(name: Path) -> bool:
    return name.read_text().strip().startswith("package")


def _zone(folder: Path) -> Zone:
    zone = Zone(folder / "energy_uj", int((folder / "max_energy_range_uj").read_text()))
    zone.read()
    return zone


WARM_UP_TOKENS = 4


def main() -> None:
    """Measure and tell."""
    channel = open_channel()
    try:
        measure(*Plan.of(next(incoming(sys.stdin))), channel)
    except SpecdecError as error:
        say(channel, {"event": "failed", "problem": _problem(error)})
    except Exception as error:  # noqa: BLE001 - whatever it is, the report names it
        say(channel, {"event": "failed", "problem": first_line(error)})


def _problem(error: SpecdecError) -> str:
    """What happened, why, and what to do, in one line."""
    fix = f" (try: {error.fix})" if error.fix else ""
    return ": ".join(filter(None, (error.what, error.why))) + fix


def measure(plan: Plan, place: Place, channel: TextIO) -> None:
    """Load the pair there, answer each prompt in each mode, then time forward passes."""
    start = time.perf_counter()
    engine = _load(plan, place)
    modes = [mode for mode in plan.modes if mode in engine.modes]
    say(channel, {"event": "loaded", "load_seconds": time.perf_counter() - start, **_describe(engine)})
    for mode in modes:
        engine.generate(prompt_of(engine.pair.target, 0), mode=mode, max_new_tokens=WARM_UP_TOKENS)
    meter = Meter()
    for length in plan.lengths:
        tokens = prompt_of(engine.pair.target, length)
        for mode in modes:
            run = _answer(engine, tokens, mode, plan.max_new_tokens, meter)
            say(channel, {"event": "run", "length": length, "mode": mode, **run})
    say(channel, {"event": "finished", "energy_problem": meter.problem, **_costs(engine)})


def _load(plan: Plan, place: Place) -> "Engine":
    from specdec_onnx.runtime.engine import load

    return load(
        plan.pair,
        draft=plan.draft,
        device=place.device,
        draft_device=place.draft_device,
        threads=place.threads,
        context=plan.context,
    )


def _describe(engine: "Engine") -> dict[str, Any]:
    draft = engine.speculation.draft
    decoders = {"target": engine.target} | ({"draft": draft.tape.decoder} if draft else {})
    return {
        "identity": str(engine.identity),
        "devices": {role: placement.device for role, placement in engine.placements.items()},
        "nodes": {role: decoder.placement() for role, decoder in decoders.items()},
    }


def _answer(
    engine: "Engine", tokens: Sequence[int], mode: str, max_new_tokens: int, meter: Meter
) -> dict[str, Any]:
    engine.forget()
    before = meter.read()
    answer = [
        token
        for step in engine.stream(tokens, mode=mode, max_new_tokens=max_new_tokens)
        for token in step.tokens
    ]
    statistics = engine.last.statistics
    return {
        "prompt_tokens": len(tokens),
        "tokens": answer,
        "joules": meter.joules_since(before),
        "first_token_ms": statistics.time_to_first_token_ms,
        "prefill_ms": 1e3 * statistics.prefill_seconds,
        "per_token_ms": 1e3 * statistics.decode_seconds / len(answer),
    }


def _costs(engine: "Engine") -> dict[str, Any]:
    from specdec_onnx.runtime.machine.costs import TARGET_WIDTHS, measure_curve

    engine.forget()
    curve = measure_curve(engine.target, TARGET_WIDTHS)
    costs = dict(zip(map(str, curve.widths), (round(1e3 * cost, 3) for cost in curve.seconds), strict=True))
    return {"forward_cost_ms": costs, "peak_memory_bytes": peak_memory()}


if __name__ == "__main__":
    main()
