"""The only kind of error that reaches a user."""

from errno import ENOSPC


class SpecdecError(Exception):
    """What happened, why, and what to do; every command prints it and exits with code 2."""

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what, why, fix)
        self.what, self.why, self.fix = what, why, fix

    def __str__(self) -> str:
        lines = [
            self.what,
            f"  why: {self.why}" if self.why else "",
            f"  try: {self.fix}" if self.fix else "",
        ]
        return "\n".join(line for line in lines if line)


def explain(error: Exception) -> SpecdecError | None:
    """The error as a user can fix it, also if packages, disk, memory or threads are lacking; None for our own fault."""
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("specdec_onnx"):
        fix = "pip install 'specdec-onnx[all]', which has what every command needs"
        return SpecdecError(f"the package {error.name} is not installed", fix=fix)
    if isinstance(error, OSError) and error.errno == ENOSPC:
        what = f"cannot write {error.filename or ''}".rstrip()
        return SpecdecError(what, error.strerror or "", "make room, or write somewhere else")
    if isinstance(error, MemoryError):
        fix = "close other programs, raise the limit of this process (ulimit -v), or choose a smaller model or context"
        return SpecdecError("there is not enough memory", str(error), fix)
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        fix = "close other programs, or raise the limits of this process (ulimit -u, ulimit -v)"
        return SpecdecError("the system gives this process no further thread", str(error), fix)
    return error if isinstance(error, SpecdecError) else None
