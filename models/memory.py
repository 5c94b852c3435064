"""Memory of this machine and of this process, as far as the system tells."""

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def available_memory() -> int | None:
    """Bytes that can be had without swapping, within a container's limit; None where the system does not tell."""
    try:
        free = _windows_status() if sys.platform == "win32" else _unix_status()
    except (OSError, ValueError, AttributeError):
        return None
    limit = _container_room(Path("/sys/fs/cgroup"))
    return free if limit is None else min(free, limit)


def peak_memory() -> int | None:
    """The most bytes that this process has held, mapped weights included; None where the system does not tell.

    On Linux getrusage is no help: there a process starts with the peak of the one that started it.
    """
    try:
        if sys.platform == "win32":
            return _windows_peak()
        if sys.platform == "linux":
            return 1024 * int(_fields(Path("/proc/self/status"))["VmHWM"].split()[0])
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    except (ImportError, OSError, AttributeError, ValueError, KeyError):
        return None
    return int(peak if sys.platform == "darwin" else 1024 * peak)


def _unix_status() -> int:
    try:
        return 1024 * int(_fields(Path("/proc/meminfo"))["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container_room(group: Path) -> int | None:
    """What is left below a container's limit: files that it has read are let go first, so they count as free."""
    try:
        limit, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
        return max(0, int(limit) - int(used) + _let_go(group / "memory.stat"))
    except (OSError, ValueError):
        return None


def _let_go(stat: Path) -> int:
    try:
        return int(dict(line.split(maxsplit=1) for line in stat.read_text().splitlines())["inactive_file"])
    except (OSError, KeyError, ValueError):
        return 0


def _fields(file: Path) -> Mapping[str, str]:
    return dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)


class _Status(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("size", ctypes.c_ulong),
        ("load", ctypes.c_ulong),
        ("total", ctypes.c_ulonglong),
        ("available", ctypes.c_ulonglong),
        ("others", ctypes.c_ulonglong * 5),
    )


class _Counters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = (
        ("size", ctypes.c_ulong),
        ("page_faults", ctypes.c_ulong),
        ("peak_working_set", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 7),
    )


def _windows_status() -> int:
    status = _Status(size=ctypes.sizeof(_Status))
    if not _kernel().GlobalMemoryStatusEx(ctypes.byref(status)):
        raise OSError("GlobalMemoryStatusEx failed")
    return int(status.available)


def _windows_peak() -> int:
    kernel, counters = _kernel(), _Counters(size=ctypes.sizeof(_Counters))
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Counters), ctypes.c_ulong)
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.size):
        raise OSError("GetProcessMemoryInfo failed")
    return int(counters.peak_working_set)


def _kernel() -> Any:
    return getattr(ctypes, "windll").kernel32  # noqa: B009 (absent from the stubs of other systems)
