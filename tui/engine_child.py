"""The engine's process: loads a pair, then answers what comes in as JSON lines until the chat closes the pipe.

Its messages, one key each: ready, failed, progress, round, ended; the chat's: reply, cancel.
"""

import os
import sys
from collections.abc import Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any, TextIO

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.channel import incoming, open_channel, say
from specdec_onnx.tui.courtesy import set_modules_aside, short_collections
from specdec_onnx.tui.engine_session import EngineSession, open_session
from specdec_onnx.tui.session import Request
from specdec_onnx.tui.settings import Settings

FACTS = ("name", "about", "device", "modes", "context", "exactness")


def main() -> None:
    """Load, say so, answer."""
    channel = open_channel()
    messages = incoming(sys.stdin)
    try:
        session = open_session(**next(messages))
    except Exception as error:  # noqa: BLE001 - the chat shows it
        say(channel, {"failed": as_message(error)})
        return
    set_modules_aside()
    say(channel, {"ready": {fact: getattr(session, fact) for fact in FACTS}})
    requests = SimpleQueue[Mapping[str, Any]]()
    Thread(target=_answer_all, args=(session, requests, channel), daemon=True).start()
    for message in messages:
        if "cancel" in message:
            session.cancel()
        else:
            requests.put(message["reply"])
    os._exit(0)  # the chat has gone, and nobody waits for a long pass


def _answer_all(session: EngineSession, requests: SimpleQueue[Mapping[str, Any]], channel: TextIO) -> None:
    while True:
        request = requests.get()
        try:
            with short_collections:
                _answer(session, as_request(request), channel)
            say(channel, {"ended": dict(session.statistics())})
        except BrokenPipeError:
            os._exit(0)
        except Exception as error:  # noqa: BLE001 - the chat shows it
            say(channel, {"failed": as_message(error)})


def _answer(session: EngineSession, request: Request, channel: TextIO) -> None:
    for step in session.reply(request, lambda done, total: say(channel, {"progress": [done, total]})):
        say(channel, {"round": [step.text, step.pieces, step.reason]})


def as_message(error: Exception) -> dict[str, str]:
    """What, why and fix of an error; of one that isn't ours, its kind and what it says."""
    if isinstance(error, SpecdecError):
        return {"what": error.what, "why": error.why, "fix": error.fix}
    return {"what": type(error).__name__, "why": str(error), "fix": ""}


def as_request(message: Mapping[str, Any]) -> Request:
    """A request as it was before it was sent."""
    return Request(**{**message, "settings": Settings.from_dict(message["settings"])})


if __name__ == "__main__":
    main()
