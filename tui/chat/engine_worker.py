"""The engine's process: loads a pair, then answers requests, which arrive as JSON lines, until the chat closes the pipe.

Its messages, one key each: measuring, ready, failed, progress, round, ended; the chat's: reply, cancel.
"""

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from traceback import print_exc
from typing import Any, TextIO

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import prefix_folder
from specdec_onnx.models.tokenizer import Tokenizer
from specdec_onnx.runtime.chat import Chat
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.generate import Step
from specdec_onnx.runtime.text.detokenizer import Detokenizer
from specdec_onnx.runtime.turns import Stream
from specdec_onnx.tui.chat.courtesy import set_modules_aside, step_back
from specdec_onnx.tui.chat.session import OnProgress, Piece, Request, Round, as_source
from specdec_onnx.tui.child import incoming, open_channel, say

IDLE = 3.0
"""Seconds without a request after which there is time to store the conversation."""


def main() -> None:
    """Load the pair that the first message names, then answer the requests in turn."""
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the chat saves its answer first, then closes the pipe
    channel, messages, jobs = open_channel(), incoming(sys.stdin), SimpleQueue[Job]()
    plan = next(messages)
    # A thread, since during a pass somebody has to hear that the answer is cancelled or that the chat has gone.
    Thread(target=_listen, args=(messages, jobs), daemon=True).start()
    try:
        step_back()
        worker = _load(plan, channel)
        while worker is not None:
            _answer(worker, _next(jobs, worker.engine), channel)
    except BrokenPipeError:
        pass  # the chat has gone
    except Exception:  # noqa: BLE001 - the chat shows the last line
        print_exc()
    os._exit(1)  # not `sys.exit`, which may find the thread's lock on stdin taken


class Job:
    """A request; `cancel` may be called from another thread at any time, also before the answer begins."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._cancelled = False
        self._stream: Stream | None = None

    def begin(self, stream: Stream) -> None:
        """This stream is its answer."""
        self._stream = stream
        if self._cancelled:
            stream.cancel()

    def cancel(self) -> None:
        """End the answer within one pass, or before its first one."""
        self._cancelled = True
        if self._stream is not None:
            self._stream.cancel()


class Worker:
    """A loaded engine and the conversation that it answered in last.

    A conversation's drafts come from its own answers: those of others fit less often, and would pile up.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name
        self._conversation, self._chat = "", self._new_chat()

    def facts(self) -> dict[str, Any]:
        """What the chat shows of the pair."""
        device, pair = self.engine.placements["target"].device, self.engine.pair
        models = [pair.target] + ([pair.draft] if pair.draft else [])
        formats = " + ".join(str(model.facts["format"]) for model in models if model.facts.get("format"))
        return {
            "name": self.name,
            "about": f"{formats} · {device}" if formats else device,
            "device": device,
            "modes": self.engine.modes,
            "context": self.engine.context,
            "exactness": str(self.engine.identity),
        }

    def stream(self, request: Request, on_progress: OnProgress | None = None) -> Stream:
        """The answer to a request, not begun yet."""
        if request.conversation != self._conversation:
            self._conversation, self._chat = request.conversation, self._new_chat()
        chat = self._chat.fork() if request.fresh else self._chat
        return chat.answer(
            request.messages,
            partial=request.partial,
            parameters=request.settings,
            mode=request.mode,
            drop_oldest=request.settings.overflow == "drop",
            on_progress=on_progress,
        )

    def statistics(self, stream: Stream) -> dict[str, Any]:
        """An answer's figures, with how many messages it did without."""
        return stream.result.statistics.as_dict() | {"left_out": self._chat.left_out}

    def _new_chat(self) -> Chat:
        return Chat(self.engine, raw=self.engine.pair.target.chat_template is None)


def open_worker(pair: str, **options: Any) -> Worker:
    """Load a pair with the options of `load`; SpecdecError when it can't run here."""
    return Worker(load(pair, prefix_folder=prefix_folder(), **options), Path(pair).resolve().name)


def rounds(stream: Stream, tokenizer: Tokenizer) -> Iterator[Round]:
    """An answer's steps, with the text of each token."""
    detokenizer = Detokenizer(tokenizer, stream.result.prompt)
    for step in stream:
        yield Round(step.text, _pieces(step, tokenizer, detokenizer), step.finish_reason)


def as_message(error: Exception) -> dict[str, str]:
    """What, why and fix of an error; of one that isn't ours, its type and its text."""
    if isinstance(error, SpecdecError):
        return {"what": error.what, "why": error.why, "fix": error.fix}
    return {"what": type(error).__name__, "why": str(error), "fix": ""}


def _listen(messages: Iterable[Mapping[str, Any]], jobs: SimpleQueue[Job]) -> None:
    job: Job | None = None
    for message in messages:
        if "reply" in message:
            jobs.put(job := Job(Request.from_dict(message["reply"])))
        elif job is not None:
            job.cancel()
    os._exit(0)  # the chat has gone, and nobody waits for a long pass


def _load(plan: Mapping[str, Any], channel: TextIO) -> Worker | None:
    try:
        worker = open_worker(**plan, on_measure=lambda: say(channel, {"measuring": True}))
    except Exception as error:  # noqa: BLE001 - the chat shows it
        say(channel, {"failed": as_message(error)})
        return None
    set_modules_aside()
    say(channel, {"ready": worker.facts()})
    return worker


def _next(jobs: SimpleQueue[Job], engine: Engine) -> Job:
    """The next request; while none comes, the conversation is stored, so that it need not be read after a restart."""
    try:
        return jobs.get(timeout=IDLE)
    except Empty:
        engine.store_text(until=lambda: not jobs.empty())
        return jobs.get()


def _answer(worker: Worker, job: Job, channel: TextIO) -> None:
    try:
        stream = worker.stream(job.request, lambda done, total: say(channel, {"progress": [done, total]}))
        job.begin(stream)
        for each in rounds(stream, worker.engine.tokenizer):
            say(channel, {"round": [each.text, each.pieces, each.reason]})
        say(channel, {"ended": worker.statistics(stream)})
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the chat shows it
        say(channel, {"failed": as_message(error)})


def _pieces(step: Step, tokenizer: Tokenizer, detokenizer: Detokenizer) -> tuple[Piece, ...]:
    """The step's tokens, the rejected ones where they were proposed."""
    kept = [
        Piece(detokenizer.push(token), as_source(source))
        for token, source in zip(step.tokens, step.sources, strict=True)
    ]
    if step.finish_reason and kept:
        kept[-1] = kept[-1]._replace(text=kept[-1].text + detokenizer.rest())
    rejected = [Piece(tokenizer.decode([token], skip_special=False), "rejected") for token in step.rejected]
    at = len(kept) - 1 if kept and kept[-1].source == "target" else len(kept)
    return (*kept[:at], *rejected, *kept[at:])


if __name__ == "__main__":
    main()
