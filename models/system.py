"""The system around us: our folders, its memory and disks, and writing a file completely or not at all."""

import ctypes
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EADDRINUSE, EDQUOT, EFBIG, ENOSPC, EROFS
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError

_DISK_ERRORS = (ENOSPC, EDQUOT, EFBIG, EROFS)


def cache_folder() -> Path:
    """The folder of downloads and measurements, which can be made again (not created here); SPECDEC_CACHE moves it."""
    if chosen := os.environ.get("SPECDEC_CACHE"):
        return user_path(chosen)
    from platformdirs import user_cache_path

    return user_cache_path("specdec-onnx", appauthor=False)


def prefix_folder() -> Path:
    """Where our own programs keep the keys and values of long texts; it can be deleted at any time."""
    return cache_folder() / "prefixes"


def delete_prefixes() -> None:
    """Delete what is in `prefix_folder`: a conversation that was deleted can be told from its keys and values."""
    for file in prefix_folder().glob("*.safetensors*"):
        with suppress(OSError):
            file.unlink()


def home() -> Path:
    """The folder of history, preferences and exported pairs (not created here); SPECDEC_HOME moves it."""
    if chosen := os.environ.get("SPECDEC_HOME"):
        return user_path(chosen)
    from platformdirs import user_data_path

    return user_data_path("specdec-onnx", appauthor=False)


def user_path(word: str | Path) -> Path:
    """The path that `word` means: a leading ~ is the user's home, unless something has exactly this name."""
    return Path(word if os.path.exists(word) else os.path.expanduser(word))  # noqa: PTH110, PTH111 - these never raise


def require_utf8(path: Path) -> None:
    """Raise SpecdecError for a path that ONNX Runtime cannot open because it is not UTF-8."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        raise SpecdecError(
            f"{path} cannot be opened", "its name is not UTF-8 text", "rename it, or use another folder"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write beside `path`: it replaces `path` at the end of the block, or is deleted after an error."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def require_free(host: str, port: int) -> None:
    """Raise OSError if no server can listen there, because another one does or the host is unknown."""
    for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            socket.create_server((str(address[0]), port), family=family).close()
        except OSError as error:
            if error.errno == EADDRINUSE:
                raise


def disk_error(error: BaseException | None) -> OSError | None:
    """The error of a disk that is full or read-only, if `error` comes from one; libraries wrap it in their own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            return error
        error = error.__cause__ or error.__context__
    return None


def cannot_keep(what: str, folder: Path, error: OSError) -> SpecdecError:
    """The error for `what`, which could not be written to a folder of the cache: which disk it is, and what to do."""
    fix = "free some space there, or set SPECDEC_CACHE to a folder on another disk; what was fetched is kept"
    if error.errno not in (ENOSPC, EDQUOT):
        return SpecdecError(f"cannot keep {what} in {folder}", str(error), fix)
    disk = next(each for each in (folder.absolute(), *folder.absolute().parents) if os.path.ismount(each))
    free = f"{shutil.disk_usage(disk).free / 1e9:.1f} GB are free on it"
    why = f"{error.strerror or 'no space is left'}: {free}"
    return SpecdecError(f"the disk at {disk} is full: no room for {what} in {folder}", why, fix)


def total_memory() -> int | None:
    """Bytes of this machine's memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def available_memory() -> int | None:
    """Bytes that can be used without swapping, within a container's limit; None where the system does not tell."""
    try:
        free = _windows_status() if sys.platform == "win32" else _unix_status()
    except (OSError, ValueError, AttributeError):
        return None
    room = _container_room(Path("/sys/fs/cgroup"))
    return free if room is None or free is None else min(free, room)


def own_cores() -> set[int]:
    """The logical cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def peak_memory() -> int | None:
    """The most bytes that this process has held, mapped weights included; None where the system does not tell.

    On Linux getrusage is no help: there a process starts with the peak of the one that started it.
    """
    try:
        if sys.platform == "win32":
            return _windows_peak()
        if sys.platform == "linux":
            return _kilobytes(Path("/proc/self/status"), "VmHWM")
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    except (ImportError, OSError, AttributeError, ValueError, KeyError):
        return None
    return int(peak if sys.platform == "darwin" else 1024 * peak)


def _unix_status() -> int | None:
    try:
        return _kilobytes(Path("/proc/meminfo"), "MemAvailable")
    except (OSError, KeyError):
        return total_memory()


def _container_room(group: Path) -> int | None:
    """Bytes left below a container's limit; cached files count as free, because they are dropped first."""
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):
        return None
    with suppress(OSError, KeyError, ValueError):
        used -= _fields(group / "memory.stat")["inactive_file"]
    return max(0, limit - used)


def _kilobytes(file: Path, name: str) -> int:
    """A figure that a file of the kernel gives in kilobytes, in bytes."""
    return 1024 * _fields(file)[f"{name}:"]


def _fields(file: Path) -> dict[str, int]:
    """The lines of a file of the kernel that begin with a name and a number."""
    lines = map(str.split, file.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


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
