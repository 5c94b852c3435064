"""A process of ours that a command starts and talks with; the other end is in `specdec_onnx.tui.child`."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
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


class Child:
    """JSON lines each way: `hear` gives what it says, `tell` may be called from any thread."""

    def __init__(self, module: str) -> None:
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - lives as long as the process
        # -P: nothing is imported from the folder that one happens to be in.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            encoding="utf-8",
        )
        assert self.process.stdin and self.process.stdout
        self._input, self._output = self.process.stdin, self.process.stdout
        self._messages = incoming(self._output)
        self._outgoing = SimpleQueue[str | None]()
        Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        with suppress(OSError):  # that the process has ended shows when it is listened to
            while (line := self._outgoing.get()) is not None:
                print(line, file=self._input, flush=True)
        with suppress(OSError):
            self._input.close()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message; never waits for a process that doesn't read."""
        self._outgoing.put(json.dumps(message))

    def hear(self) -> dict[str, Any] | None:
        """The next message; None when the process has ended."""
        return next(self._messages, None)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def last_words(self) -> str:
        """Why it ended."""
        return last_words(self._said, self.process.wait())

    def close(self, patience: float = 0.0) -> None:
        """Close its input and wait so many seconds for it to end of itself; then end it."""
        self._outgoing.put(None)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        self.process.wait()
        self._output.close()
        self._said.close()
