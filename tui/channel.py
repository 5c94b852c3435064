"""JSON lines between a command and the process that it starts, one that may crash."""

import json
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO


def open_channel() -> TextIO:
    """In the started process: what is written here reaches the parent; anything else that is printed goes to stderr.

    Ctrl-C is left to the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def say(channel: TextIO, message: Mapping[str, Any]) -> None:
    """Send one message."""
    print(json.dumps(message), file=channel, flush=True)


def incoming(pipe: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The messages that come through a pipe, until it is closed."""
    return map(json.loads, pipe)


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    return (str(error).strip() or repr(error)).splitlines()[0]


def last_words(said: TextIO, code: int) -> str:
    """Why a process ended: the last line that it wrote to `said`, else its exit code or signal."""
    said.seek(0)
    lines = [line for line in said.read().splitlines() if line.strip()]
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return lines[-1].strip() if lines else f"its process ended with code {code}"
