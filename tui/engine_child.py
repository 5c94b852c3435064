"""The engine's process: loads a pair, then answers what comes in as JSON lines until the chat closes the pipe.

Its messages, one key each: measuring, ready, failed, progress, round, ended; the chat's: reply, cancel.
"""

import os
import sys
from collections.abc import Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any, TextIO

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.channel import incoming, open_channel, say
from specdec_onnx.tui.courtesy import set_modules_aside
from specdec_onnx.tui.engine_session import EngineSession, open_session
from specdec_onnx.tui.session import Request

FACTS = ("name", "about", "device", "modes", "context", "exactness")


def main() -> None:
    """Load, say so, answer. The main thread only listens, so that nothing outlives the chat."""
    channel = open_channel()
    messages = incoming(sys.stdin)
    engine = Engine(next(messages), channel)
    Thread(target=engine.run, daemon=True).start()
    for message in messages:
        engine.take(message)
    os._exit(0)  # the chat has gone, and nobody waits for a long pass


class Engine:
    """What the worker thread does, and what it is told meanwhile."""

    def __init__(self, plan: Mapping[str, Any], channel: TextIO) -> None:
        self._plan, self._channel = plan, channel
        self._requests = SimpleQueue[Mapping[str, Any]]()
        self._session: EngineSession | None = None

    def take(self, message: Mapping[str, Any]) -> None:
        """A message of the chat, in the main thread."""
        if "reply" in message:
            self._requests.put(message["reply"])
        elif self._session is not None:
            self._session.cancel()

    def run(self) -> None:
        """Load, then answer one request after the other; a chat that can't be told has gone."""
        try:
            self._load()
            while True:
                self._answer(Request.from_dict(self._requests.get()))
        finally:
            os._exit(1)

    def _load(self) -> None:
        try:
            self._session = session = open_session(
                **self._plan, on_measure=lambda: self._say("measuring", True)
            )
        except Exception as error:  # noqa: BLE001 - the chat shows it
            self._say("failed", as_message(error))
            os._exit(0)
        set_modules_aside()
        self._say("ready", {fact: getattr(session, fact) for fact in FACTS})

    def _answer(self, request: Request) -> None:
        assert self._session is not None
        try:
            for step in self._session.reply(
                request, lambda done, total: self._say("progress", [done, total])
            ):
                self._say("round", [step.text, step.pieces, step.reason])
            self._say("ended", dict(self._session.statistics()))
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - the chat shows it
            self._say("failed", as_message(error))

    def _say(self, kind: str, content: object) -> None:
        say(self._channel, {kind: content})


def as_message(error: Exception) -> dict[str, str]:
    """What, why and fix of an error; of one that isn't ours, its kind and what it says."""
    if isinstance(error, SpecdecError):
        return {"what": error.what, "why": error.why, "fix": error.fix}
    return {"what": type(error).__name__, "why": str(error), "fix": ""}


if __name__ == "__main__":
    main()
