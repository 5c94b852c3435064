"""How much memory this process has used at most."""

import sys


def peak_memory_bytes() -> int | None:
    """Largest resident size so far, or None where the system does not tell."""
    try:
        return _windows() if sys.platform == "win32" else _unix()
    except (ImportError, OSError, AttributeError):
        return None


def _unix() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def _windows() -> int:
    import ctypes
    from ctypes import wintypes

    class Counters(ctypes.Structure):
        _fields_ = (
            ("size", wintypes.DWORD),
            ("page_faults", wintypes.DWORD),
            ("peak_working_set", ctypes.c_size_t),
            ("others", ctypes.c_size_t * 7),
        )

    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 (absent from the stubs of other systems)
    kernel.GetCurrentProcess.restype = wintypes.HANDLE
    kernel.K32GetProcessMemoryInfo.argtypes = (wintypes.HANDLE, ctypes.POINTER(Counters), wintypes.DWORD)
    counters = Counters(size=ctypes.sizeof(Counters))
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.size):
        raise OSError("GetProcessMemoryInfo failed")
    return int(counters.peak_working_set)
