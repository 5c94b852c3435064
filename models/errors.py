"""The only kind of error that reaches a user."""

from errno import ENOMEM, ENOSPC

_NO_THREAD = ("can't start new thread", "pthread_create failed")
_NO_MEMORY = ("std::bad_alloc", "Failed to allocate memory")


class SpecdecError(Exception):
    """What happened, why, and what to do; every command prints it and exits with code 2."""

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what, why, fix)
        self.what, self.why, self.fix = what, why, fix

    def __str__(self) -> str:
        lines = self.what, self.why and f"  why: {self.why}", self.fix and f"  try: {self.fix}"
        return "\n".join(filter(None, lines))


def explain(error: Exception) -> SpecdecError | None:
    """The error as a user can fix it, also if packages, disk, memory or threads are lacking; None for our own fault."""
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("specdec_onnx"):
        fix = "pip install 'specdec-onnx[all]', which has what every command needs"
        return SpecdecError(f"the package {error.name} is not installed", fix=fix)
    if isinstance(error, OSError) and error.errno == ENOSPC:
        what = f"cannot write {error.filename or ''}".rstrip()
        return SpecdecError(what, error.strerror or "", "make room, or write somewhere else")
    return error if isinstance(error, SpecdecError) else exhausted(error)


def exhausted(error: Exception) -> SpecdecError | None:
    """The error for a lack of memory or threads, as Python or ONNX Runtime reports it; None for others."""
    reason = str(error).partition("\n")[0]
    fix = "close other programs, or raise the limits of this process (ulimit -u, ulimit -v)"
    if any(sign in reason for sign in _NO_THREAD):
        return SpecdecError("the system gives this process no further thread", reason, fix)
    lacks_memory = isinstance(error, MemoryError) or getattr(error, "errno", None) == ENOMEM
    if lacks_memory or any(sign in reason for sign in _NO_MEMORY):
        return SpecdecError(
            "there is not enough memory", reason, f"{fix}, or choose a smaller model or context"
        )
    return None
