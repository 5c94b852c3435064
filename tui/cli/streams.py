"""The standard streams: none missing, text is UTF-8 in every locale, and nothing that a terminal would obey."""

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer
from typing import Any, TextIO

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.text import printable

PATIENCE = 0.7
"""Seconds that stdin may take before somebody is told that it is awaited."""

_UNSEEN = {code: f"\\u{code:04x}" for code in [*range(0x7F, 0xA0), 0x61C, *range(0x200B, 0x2010)]}
_UNSEEN |= {code: f"\\u{code:04x}" for code in [*range(0x2028, 0x202F), *range(0x2066, 0x206A)]}


def settle() -> None:
    """Make the streams ready: the null device for a closed one, a replacement for characters that one lacks.

    A closed stream leaves its number to the next file that is opened, and `file=sys.stderr` would mean stdout.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - lives as long as the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            lossy = stream.encoding.lower() in ("ascii", "us-ascii", "ansi_x3.4-1968") and not stream.isatty()
            reconfigure(errors="replace", encoding="utf-8" if lossy else None)


def shown(text: str, stream: TextIO) -> str:
    """A model's or a user's text for `stream`: as it is, but on a terminal its control characters are visible."""
    return printable(text) if stream.isatty() else text


def printable_all(value: Any, change: Callable[[str], str] = str) -> Any:
    """`printable`, and then `change`, for every text in what is made of dictionaries and lists."""
    if isinstance(value, str):
        return change(printable(value))
    if isinstance(value, dict):
        return {printable_all(key, change): printable_all(item, change) for key, item in value.items()}
    return [printable_all(item, change) for item in value] if isinstance(value, list | tuple) else value


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON as people read it: letters as they are, what can't be seen or encoded as `\\u009b`."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text.translate(_UNSEEN).encode(errors="backslashreplace").decode()


def read_input(*, raw: bool = False) -> str:
    """All of stdin as text, without a byte order mark; line ends become newlines unless `raw`.

    Tells on stderr that it is awaited. Raises SpecdecError for what is not text.
    """
    with _told_when_awaited():
        source = getattr(sys.stdin, "buffer", None)
        found = sys.stdin.read() if source is None else _decode(source.read())
    return found if raw else re.sub("\r\n?", "\n", found)


def input_left() -> bool:
    """Whether text stands ready on stdin that nobody has begun to read; False where that can't be told."""
    try:
        number = sys.stdin.fileno()
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            return status.st_size > 0 and os.lseek(number, 0, os.SEEK_CUR) == 0
        return not stat.S_ISCHR(status.st_mode) and _waiting_bytes(number) > 0
    except (OSError, ValueError):
        return False


def _waiting_bytes(number: int) -> int:
    try:
        from fcntl import ioctl
        from termios import FIONREAD
    except ImportError:  # Windows
        return 0
    return int.from_bytes(ioctl(number, FIONREAD, bytes(4)), sys.byteorder)


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        with suppress(
            UnicodeDecodeError, LookupError
        ):  # the terminal of a locale that has an encoding of its own
            return data.decode(sys.stdin.encoding)
        raise SpecdecError(
            "the text on stdin is not UTF-8", str(error), "convert it, with iconv for example"
        ) from error


@contextmanager
def _told_when_awaited() -> Iterator[None]:
    """Say after a moment, to a terminal at once, how to end the text that is awaited."""
    if sys.stdin.isatty():
        end = "Ctrl-Z and Enter end it" if sys.platform == "win32" else "Ctrl-D ends it"
        word, patience = f"reading the prompt from the keyboard; on a new line, {end}", 0.0
    else:
        word, patience = "waiting for the end of the text on stdin; Ctrl-C gives up", PATIENCE
    timer = Timer(patience, print, (word,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
