"""What both commands share: their standard streams, how errors are printed, and exit codes."""

import argparse
import os
import sys
from typing import Any, Self

from specdec_onnx.models.errors import SpecdecError, explain
from specdec_onnx.models.text import printable

BAD_INPUT, INTERNAL, INTERRUPTED, CLOSED_PIPE = 2, 1, 130, 141


class ExitCode:
    """The exit code of a command, whose work is done in the `with` block: an error is printed in words.

    With SPECDEC_DEBUG set, errors are raised.
    """

    code = 0

    def __enter__(self) -> Self:
        _prepare_streams()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            try:
                sys.stdout.flush()
            except OSError as failure:
                error = failure
        if isinstance(error, KeyboardInterrupt):
            self.code = INTERRUPTED
        elif isinstance(error, BrokenPipeError):
            _give_up_stdout()
            self.code = CLOSED_PIPE
        elif isinstance(error, Exception) and not os.environ.get("SPECDEC_DEBUG"):
            self.code = _report(error)
        elif error is not None:
            raise error
        return True


class CommandParser(argparse.ArgumentParser):
    """A parser whose help raises where it cannot be written; argparse would say nothing and exit with code 0."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if message and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)


def _prepare_streams() -> None:
    """Open the null device for a closed stream, and replace characters that a stream cannot encode.

    Otherwise the next file that is opened would take the number of the closed stream. An stdin that can only be written
    and an stderr that can only be read count as closed; an stdout that can only be read ends the command with an error.
    """
    if sys.stdout is not None and _wrong_way(1, os.O_RDONLY):
        known = SpecdecError("cannot write to stdout", "it is open for reading only", "redirect it with >")
        print(printable(str(known)), file=sys.stderr)
        sys.exit(BAD_INPUT)
    if sys.stdin is None or _wrong_way(0, os.O_WRONLY):
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - lives as long as the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stderr is None or _wrong_way(2, os.O_RDONLY):
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            lossy = stream.encoding.lower() in ("ascii", "us-ascii", "ansi_x3.4-1968") and not stream.isatty()
            reconfigure(errors="replace", encoding="utf-8" if lossy else None)


def _wrong_way(number: int, wrong: int) -> bool:
    """Whether the file of that number is open, in the access mode `wrong`."""
    try:
        from fcntl import F_GETFL, fcntl

        return fcntl(number, F_GETFL) & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR) == wrong
    except (ImportError, OSError):  # Windows; closed
        return False


def _report(error: Exception) -> int:
    known = explain(error)
    if known is None:
        print(printable(f"{type(error).__name__}: {error}"), file=sys.stderr)
        print("  try: set SPECDEC_DEBUG=1 to see where this came from", file=sys.stderr)
        return INTERNAL
    print(printable(str(known)), file=sys.stderr)
    if not isinstance(error, OSError):
        return BAD_INPUT
    _give_up_stdout()  # stdout may be what is full
    return INTERNAL


def _give_up_stdout() -> None:
    """Keep what is still buffered from raising again when the interpreter closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
