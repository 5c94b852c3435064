"""Whether the machine was quiet while something was measured."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_onnx.tui.bench.measure import Round
from specdec_onnx.tui.bench.processor import on_battery, throttle_count
from specdec_onnx.tui.wording import percent

OTHERS_LIMIT, STOLEN_LIMIT, SPREAD_LIMIT = 0.1, 0.02, 0.15
"""Shares above which a measurement is called noisy: of the processor by others, by the host, of the time of equal runs."""

_TICKS = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class _Snapshot:
    wall: float
    own: float
    busy: float | None
    stolen: float | None
    throttled: int
    load: float | None


class Watch:
    """Starts when it is made; looks at the processor time of others and at signs of throttling."""

    def __init__(self) -> None:
        self._before = _snapshot()

    def findings(self) -> dict[str, Any]:
        """What was seen since the start; None for what this system does not tell.

        Seconds of child processes count as own ones once they have ended.
        """
        before, now = self._before, _snapshot()
        capacity = max(now.wall - before.wall, 1e-9) * (os.cpu_count() or 1)
        return {
            "seconds": round(now.wall - before.wall, 1),
            "others_share": _others(before, now, capacity),
            "stolen_share": _share(before.stolen, now.stolen, capacity),
            "load_average_before": before.load,
            "throttled": now.throttled - before.throttled,
            "on_battery": on_battery(),
        }


def noise(watch: Watch, rounds: Sequence[Round]) -> dict[str, Any]:
    """What the watch saw, how far repeats of plain decoding lie apart, and the warnings that follow."""
    times = [[run.seconds_per_token for run in round_["plain"]] for round_ in rounds]
    findings = watch.findings() | {"plain_spread": unsteadiness(times)}
    return findings | {"warnings": warnings(findings)}


def warnings(findings: Mapping[str, Any]) -> list[str]:
    """What makes the figures doubtful, as sentences."""
    cores, load, said = os.cpu_count() or 1, findings["load_average_before"], []
    if (findings["others_share"] or 0) > OTHERS_LIMIT:
        said.append(f"other programs used {percent(findings['others_share'])} of the processor meanwhile")
    if load is not None and load > cores:
        said.append(f"the load average was {load:.1f} before the start, on {cores} cores")
    if (findings["stolen_share"] or 0) > STOLEN_LIMIT:
        said.append(
            f"the host of this virtual machine kept {percent(findings['stolen_share'])} of the processor"
        )
    if (findings.get("plain_spread") or 0) > SPREAD_LIMIT:
        said.append(f"plain decoding of the same prompt varied by {percent(findings['plain_spread'])}")
    if findings["throttled"]:
        said.append(f"the processor was slowed down for its heat {findings['throttled']} times")
    if findings["on_battery"]:
        said.append("the machine runs on its battery, which often slows the processor down")
    return said


def unsteadiness(repeats: Sequence[Sequence[float]]) -> float | None:
    """How far repeats of the same work lie apart: the median of (slowest - fastest) / fastest; None without repeats."""
    apart = sorted(max(times) / min(times) - 1 for times in repeats if len(times) > 1 and min(times) > 0)
    return round(apart[len(apart) // 2], 3) if apart else None


def _others(before: _Snapshot, now: _Snapshot, capacity: float) -> float | None:
    if before.busy is None or now.busy is None:
        return None
    return round(max(0.0, (now.busy - before.busy - (now.own - before.own)) / capacity), 3)


def _share(before: float | None, now: float | None, capacity: float) -> float | None:
    return None if before is None or now is None else round((now - before) / capacity, 3)


def _snapshot() -> _Snapshot:
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    busy, stolen = _processor_seconds()
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return _Snapshot(time.monotonic(), own, busy, stolen, throttle_count(), load)


def _processor_seconds() -> tuple[float | None, float | None]:
    """Seconds that all cores together were busy, and that the host took from this virtual machine (see proc(5))."""
    if not _TICKS.exists():
        return None, None
    fields = [int(field) for field in _TICKS.read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = fields[:8]
    per_second = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / per_second, steal / per_second
