"""JSON lines between a command and a process that it starts: first the started process's end, then the command's,
once for a command that waits and once for an event loop."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any, Self, TextIO

from specdec_onnx.models.errors import SpecdecError

LONGEST_LINE = 1 << 26
"""Bytes of a message that an event loop can still read."""


def open_channel() -> TextIO:
    """In the started process: what is written here reaches the parent; anything else that is printed goes to stderr.

    Ctrl-C is left to the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def say(channel: IO[str], message: Mapping[str, Any]) -> None:
    """Send one message."""
    print(json.dumps(message), file=channel, flush=True)


def incoming(pipe: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The messages that come through a pipe, until it is closed; one that was cut off is dropped."""
    return (json.loads(line) for line in pipe if line.endswith("\n"))


def serve(work: Callable[[Iterator[dict[str, Any]], TextIO], None]) -> None:
    """Run `work` on the messages that come in, with the channel for its own; what it raises is sent as an `error`."""
    channel = open_channel()
    try:
        work(incoming(sys.stdin), channel)
    except SpecdecError as error:
        fix = f" (try: {error.fix})" if error.fix else ""
        say(channel, {"error": ": ".join(filter(None, (error.what, error.why))) + fix})
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        say(channel, {"error": first_line(error)})


def first_line(error: BaseException) -> str:
    """The first line of an exception's message."""
    return (str(error).strip() or repr(error)).splitlines()[0]


class Child:
    """A started process and a command that waits for its answers."""

    def __init__(self, module: str) -> None:
        self._stderr = errors_file()
        self.process = subprocess.Popen(
            _command(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
        )
        assert self.process.stdin and self.process.stdout
        self._input, self._output = self.process.stdin, self.process.stdout
        self._messages = incoming(self._output)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message; that the process has ended shows in `hear`."""
        with suppress(OSError):
            say(self._input, message)

    def hear(self) -> dict[str, Any] | None:
        """Wait for the next message; None when the process has ended."""
        return next(self._messages, None)

    def last_words(self) -> str:
        """Why it ended."""
        return why_ended(self._stderr, self.process.wait())

    def close(self, patience: float = 0.0) -> None:
        """Close its input and wait this many seconds for it to end by itself; then end it."""
        with suppress(OSError):
            self._input.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        self.process.wait()
        self._output.close()
        self._stderr.close()


class AsyncChild:
    """A started process and an event loop, which never waits for a process that hangs."""

    def __init__(self, process: asyncio.subprocess.Process, stderr: TextIO) -> None:
        assert process.stdin and process.stdout
        self.process, self._stderr = process, stderr
        self._input, self._output = process.stdin, process.stdout

    @classmethod
    async def start(cls, module: str) -> Self:
        """Run a module in a process of its own."""
        stderr, pipe = errors_file(), subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *_command(module), stdin=pipe, stdout=pipe, stderr=stderr, limit=LONGEST_LINE
        )
        return cls(process, stderr)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message as soon as the process reads."""
        self._input.write(f"{json.dumps(message)}\n".encode())

    async def hear(self) -> dict[str, Any] | None:
        """The next message; None when the process has ended."""
        line = await self._output.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.returncode is None

    async def last_words(self) -> str:
        """Why it ended."""
        return why_ended(self._stderr, await self.process.wait())

    async def close(self, patience: float = 0.0) -> None:
        """Close its input and wait this many seconds for it to end by itself; then end it."""
        self._input.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self.process.wait()
        finally:  # also when whoever closes it is cancelled
            with suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()
        self._stderr.close()


def _command(module: str) -> list[str]:
    # -P: nothing is imported from the folder that one happens to be in.
    return [sys.executable, "-P", "-m", module]


def errors_file() -> TextIO:
    """Where a process can write its errors for `why_ended`."""
    return tempfile.TemporaryFile("w+", errors="replace")


def why_ended(stderr: TextIO, code: int) -> str:
    """Why a process ended: the signal, else the last line that it wrote to `stderr`, else its exit code."""
    if code < 0:
        return f"its process was terminated by {signal.Signals(-code).name}"
    stderr.seek(0)
    lines = [line for line in stderr.read().splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"its process exited with code {code}"
