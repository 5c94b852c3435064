"""What the figures were measured on."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_onnx.models.system import total_memory
from specdec_onnx.tui.bench import machine as processor
from specdec_onnx.tui.bench.runs import Round
from specdec_onnx.tui.text import percent

if TYPE_CHECKING:
    from specdec_onnx.models.folder import ModelFolder
    from specdec_onnx.models.pair import Pair


def machine() -> dict[str, Any]:
    """Processor, memory, system and versions."""
    import onnxruntime

    from specdec_onnx.runtime.kernels import kernels

    ours = kernels()
    return {
        "processor": processor.name(),
        "features": processor.features(),
        "cores": processor.logical_cores(),
        "physical_cores": processor.physical_cores(),
        "governor": processor.governor() or None,
        "on_battery": processor.on_battery(),
        "memory_bytes": total_memory(),
        "load_average": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "kernels": {"name": ours.name, "fingerprint": ours.fingerprint, "absent": ours.absent},
    }


def describe_pair(pair: "Pair") -> dict[str, Any]:
    """Target and draft: format, size, and the checkpoint they came from."""
    draft = None if pair.draft is None else _describe(pair.draft)
    return {"name": pair.path.resolve().name, "target": _describe(pair.target), "draft": draft}


def _describe(model: "ModelFolder") -> dict[str, Any]:
    return {
        "name": model.name,
        "format": model.facts.get("format"),
        "weight_bytes": model.weight_bytes,
        "source": model.facts.get("source"),
    }


INT8_FEATURES = ("avx2", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
"""Processor flags that decide how fast int8 multiplies."""

SYSTEM = Path("/sys/devices/system/cpu")


def name() -> str:
    """The model name."""
    return _cpuinfo("model name", "Model") or platform.processor() or platform.machine()


def features() -> list[str]:
    """Those of INT8_FEATURES that it has."""
    flags = _cpuinfo("flags", "Features").split()
    return [flag for flag in INT8_FEATURES if flag in flags]


def logical_cores() -> int:
    """Logical cores that this process may use."""
    return len(_own_cores())


def physical_cores() -> int:
    """Physical cores that this process may use: logical ones that share a core count once."""
    siblings = {_read(SYSTEM / f"cpu{core}/topology/core_cpus_list") or str(core) for core in _own_cores()}
    return len(siblings)


def governor() -> str:
    """Linux's frequency policy, such as `powersave`; "" where there is none."""
    return _read(SYSTEM / "cpu0/cpufreq/scaling_governor")


def throttle_count() -> int:
    """How often the cores were slowed down for their heat since the system started, as far as it is counted."""
    return sum(
        int(_read(file) or 0) for file in SYSTEM.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    )


def on_battery() -> bool | None:
    """Whether the machine runs on its battery; None for a machine that does not tell."""
    mains = [_read(file) for file in Path("/sys/class/power_supply").glob("*/online")]
    return "1" not in mains if any(mains) else None


def _own_cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _cpuinfo(*keys: str) -> str:
    """The first value of one of these keys; "" where the system has no such file."""
    lines = _read(Path("/proc/cpuinfo")).splitlines()
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() in keys), "")


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
