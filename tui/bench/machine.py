"""What the figures were measured on: the machine, the pair, and whether anything disturbed them."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.pair import Pair
from specdec_onnx.models.system import own_cores, total_memory
from specdec_onnx.models.text import percent
from specdec_onnx.runtime.kernels import kernels

INT8_FEATURES = ("avx2", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
"""Processor flags that decide how fast int8 multiplies."""

OTHERS_LIMIT, STOLEN_LIMIT, SPREAD_LIMIT = 0.1, 0.02, 0.15
"""Shares above which a measurement counts as noisy: of processor time used by other programs, of processor time taken by
the host, and by which repeats of the same work differ."""

SYSTEM = Path("/sys/devices/system/cpu")
TICKS = Path("/proc/stat")


def describe_machine() -> dict[str, Any]:
    """Processor, memory, system and versions."""
    ours = kernels()
    return {
        "processor": processor_name(),
        "features": [flag for flag in INT8_FEATURES if flag in _cpuinfo("flags", "Features").split()],
        "cores": logical_cores(),
        "physical_cores": physical_cores(),
        "governor": _read(SYSTEM / "cpu0/cpufreq/scaling_governor") or None,
        "on_battery": on_battery(),
        "memory_bytes": total_memory(),
        "load_average": load_average(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "kernels": {"name": ours.name, "fingerprint": ours.fingerprint, "absent": ours.absent},
    }


def describe_pair(pair: Pair) -> dict[str, Any]:
    """Target and draft: format, size, and the checkpoint they came from."""
    draft = None if pair.draft is None else _describe(pair.draft)
    return {"name": pair.path.resolve().name, "target": _describe(pair.target), "draft": draft}


def _describe(model: ModelFolder) -> dict[str, Any]:
    return {
        "name": model.name,
        "format": model.facts.get("format"),
        "weight_bytes": model.weight_bytes,
        "source": model.facts.get("source"),
    }


def processor_name() -> str:
    """The processor's model name."""
    return _cpuinfo("model name", "Model") or platform.processor() or platform.machine()


def logical_cores() -> int:
    """Logical cores that this process may use."""
    return len(own_cores())


def physical_cores() -> int:
    """Physical cores that this process may use: logical ones that share a core count once."""
    siblings = {_read(SYSTEM / f"cpu{core}/topology/core_cpus_list") or str(core) for core in own_cores()}
    return len(siblings)


def on_battery() -> bool | None:
    """Whether the machine runs on its battery; None if that is not known."""
    mains = [_read(file) for file in Path("/sys/class/power_supply").glob("*/online")]
    return "1" not in mains if any(mains) else None


def load_average() -> list[float] | None:
    """The load average of 1, 5 and 15 minutes; None where the system has none."""
    return [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None


def _cpuinfo(*keys: str) -> str:
    """The first value of one of these keys; "" where the system has no such file."""
    lines = _read(Path("/proc/cpuinfo")).splitlines()
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() in keys), "")


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


class Watch:
    """Observes other programs' use of the processor and signs of throttling, from its creation on."""

    def __init__(self) -> None:
        self._load, self._before = load_average(), _counters()

    def findings(self) -> dict[str, Any]:
        """What was seen since the start; None for what this system does not tell.

        Seconds of child processes count as our own once they have ended.
        """
        passed = {name: count - self._before[name] for name, count in _counters().items()}
        capacity = max(passed["wall"], 1e-9) * (os.cpu_count() or 1)
        others = stolen = None
        if "busy" in passed:
            others = round(max(0.0, (passed["busy"] - passed["own"]) / capacity), 3)
            stolen = round(passed["stolen"] / capacity, 3)
        return {
            "seconds": round(passed["wall"], 1),
            "others_share": others,
            "stolen_share": stolen,
            "load_average_before": self._load[0] if self._load else None,
            "throttled": int(passed["throttled"]),
            "on_battery": on_battery(),
        }


def noise(watch: Watch, repeats: Sequence[Sequence[float]]) -> dict[str, Any]:
    """What the watch saw, how far `repeats` of plain decoding lie apart, and the warnings that follow."""
    findings = watch.findings() | {"plain_spread": unsteadiness(repeats)}
    return findings | {"warnings": warnings(findings)}


def warnings(findings: Mapping[str, Any]) -> list[str]:
    """What makes the figures doubtful, as sentences."""
    cores, load, result = os.cpu_count() or 1, findings["load_average_before"], []
    if (findings["others_share"] or 0) > OTHERS_LIMIT:
        result.append(f"other programs used {percent(findings['others_share'])} of the processor meanwhile")
    if load is not None and load > cores:
        result.append(f"the load average was {load:.1f} before the start, on {cores} cores")
    if (findings["stolen_share"] or 0) > STOLEN_LIMIT:
        share = percent(findings["stolen_share"])
        result.append(f"the host of this virtual machine took {share} of the processor")
    if (findings["plain_spread"] or 0) > SPREAD_LIMIT:
        result.append(f"plain decoding of the same prompt varied by {percent(findings['plain_spread'])}")
    if findings["throttled"]:
        result.append(f"the processor was throttled for heat {findings['throttled']} times")
    if findings["on_battery"]:
        result.append("the machine runs on battery, which often slows the processor down")
    return result


def unsteadiness(repeats: Sequence[Sequence[float]]) -> float | None:
    """How far repeats of the same work lie apart: the median of (slowest - fastest) / fastest; None without repeats."""
    apart = sorted(max(times) / min(times) - 1 for times in repeats if len(times) > 1 and min(times) > 0)
    return round(apart[len(apart) // 2], 3) if apart else None


def _counters() -> dict[str, float]:
    """What only grows: seconds (wall, own, and of all cores together busy and stolen) and how often it was throttled.

    See proc(5) for what is busy, and for what the host took from this virtual machine.
    """
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    throttled = SYSTEM.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    counters = {
        "wall": time.monotonic(),
        "own": own,
        "throttled": sum(int(_read(file) or 0) for file in throttled),
    }
    if ticks := _read(TICKS):
        user, nice, system, _, _, irq, softirq, steal = map(int, ticks.split()[1:9])
        per_second = os.sysconf("SC_CLK_TCK")
        counters["busy"] = (user + nice + system + irq + softirq) / per_second
        counters["stolen"] = steal / per_second
    return counters
