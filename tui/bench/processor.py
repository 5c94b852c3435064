"""The processor: what it is and what state it is in, as far as the system tells."""

import os
import platform
from pathlib import Path

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
