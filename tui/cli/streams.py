"""What goes through the standard streams: text in every locale, JSON, and nothing that a terminal would obey."""

import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any, TextIO

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.text import printable

PATIENCE = 0.7
"""Seconds until somebody is told that stdin is awaited."""

_UNSEEN = {code: f"\\u{code:04x}" for code in [*range(0x7F, 0xA0), 0x61C, *range(0x200B, 0x2010)]}
_UNSEEN |= {code: f"\\u{code:04x}" for code in [*range(0x2028, 0x202F), *range(0x2066, 0x206A)]}


def shown(text: str, stream: TextIO) -> str:
    """`text` for `stream`: unchanged, but a terminal shows its control characters instead of obeying them."""
    return printable(text) if stream.isatty() else text


def printable_all(value: Any) -> Any:
    """Apply `printable` to every text in nested dictionaries and lists."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_all(key): printable_all(item) for key, item in value.items()}
    return list(map(printable_all, value)) if isinstance(value, list | tuple) else value


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON for people: letters stay, invisible characters and what can't be encoded become escapes like `\\u009b`."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text.translate(_UNSEEN).encode(errors="backslashreplace").decode()


def read_input(*, raw: bool = False) -> str:
    """All of stdin as text, without a byte order mark; line ends become newlines unless `raw`.

    If that takes a moment, stderr tells how to end the text. Raises SpecdecError for bytes that are not text.
    """
    with _waiting_for_input():
        source = getattr(sys.stdin, "buffer", None)
        text = sys.stdin.read() if source is None else _decode(source.read())
    return text if raw else re.sub("\r\n?", "\n", text)


def read_text(file: Path) -> str:
    """The text of a file, without a byte order mark. Raises SpecdecError if it cannot be read or is no text."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SpecdecError(f"cannot read {file}", error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise SpecdecError(
            f"{file} is not UTF-8", str(error), "convert it, with iconv for example"
        ) from error


def input_left() -> bool:
    """Whether text waits on stdin that nobody has begun to read; False if that is not known."""
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
        with suppress(UnicodeDecodeError, LookupError):
            return data.decode(sys.stdin.encoding)  # a terminal's own encoding
        raise SpecdecError(
            "the text on stdin is not UTF-8", str(error), "convert it, with iconv for example"
        ) from error


@contextmanager
def _waiting_for_input() -> Iterator[None]:
    """Explain after a moment, in a terminal at once, what is awaited and how to end it."""
    if sys.stdin.isatty():
        end = "Ctrl-Z and Enter end it" if sys.platform == "win32" else "Ctrl-D ends it"
        hint, patience = f"reading the prompt from the keyboard; on a new line, {end}", 0.0
    else:
        hint, patience = "waiting for the end of the text on stdin; Ctrl-C gives up", PATIENCE
    timer = Timer(patience, print, (hint,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
