"""The engine's process: loads a pair, then answers what comes in as JSON lines until the chat closes the pipe.

Its messages, one key each: measuring, ready, failed, progress, round, ended; the chat's: reply, cancel.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TextIO

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.courtesy import set_modules_aside, step_back
from specdec_onnx.tui.chat.session import Piece, Progress, Request, Round, as_source
from specdec_onnx.tui.child import incoming, open_channel, say

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.generate import Step
    from specdec_onnx.runtime.text.detokenizer import Detokenizer
    from specdec_onnx.runtime.text.prompt import Prompt


class EngineSession:
    """A `Session` over a loaded engine."""

    def __init__(self, engine: "Engine", name: str) -> None:
        from specdec_onnx.runtime.chat import Transcript

        self.name, self.device = name, engine.placements["target"].device
        self.modes, self.context = engine.modes, engine.context
        self.exactness = str(engine.identity)
        self._engine, self._suffix = engine, engine.speculation.suffix()
        self._transcript = Transcript(engine.pair.target)

    @property
    def about(self) -> str:
        """Formats and device: `w8a8 + int4 · cpu`."""
        pair = self._engine.pair
        models = [pair.target] + ([pair.draft] if pair.draft else [])
        formats = " + ".join(str(model.facts["format"]) for model in models if model.facts.get("format"))
        return f"{formats} · {self.device}" if formats else self.device

    def reply(self, request: Request, progress: Progress) -> Iterator[Round]:
        """Stream an answer through the model's chat template; a partial answer is gone on with."""
        from specdec_onnx.runtime.text.detokenizer import Detokenizer

        prompt = self._prompt(request)
        tokens = self._transcript.encode(prompt)
        suffix = self._engine.speculation.suffix() if request.fresh else self._suffix
        spoken, written = Detokenizer(self._engine.tokenizer, tokens), list[int]()
        try:
            for step in self._engine.stream(
                tokens, parameters=request.settings, mode=request.mode, suffix=suffix, on_progress=progress
            ):
                written.extend(step.tokens)
                yield Round(step.text, self._pieces(step, spoken), step.finish_reason)
        finally:
            if not request.fresh:
                self._transcript.remember(prompt, tokens, self._engine.last.text, written)

    def statistics(self) -> Mapping[str, Any]:
        """The engine's own counts of the last answer."""
        return self._engine.last.statistics.as_dict()

    def cancel(self) -> None:
        """End the answer within one forward pass."""
        self._engine.cancel()

    def close(self) -> None:
        """Nothing is held outside of Python."""

    def _prompt(self, request: Request) -> "Prompt":
        from specdec_onnx.runtime.text.prompt import Prompt, chat_prompt

        target = self._engine.pair.target
        if target.chat_template is None:
            said = [*(message["content"] for message in request.messages), request.partial]
            return Prompt("\n\n".join(said), raw=True)
        return chat_prompt(target, request.messages, partial=request.partial)

    def _pieces(self, step: "Step", spoken: "Detokenizer") -> tuple[Piece, ...]:
        """The step's tokens, the rejected ones in the place where they were proposed."""
        said = [
            Piece(spoken.push(token), as_source(source))
            for token, source in zip(step.tokens, step.sources, strict=True)
        ]
        if step.finish_reason and said:
            said[-1] = said[-1]._replace(text=said[-1].text + spoken.rest())
        decode = self._engine.tokenizer.decode
        fallen = [Piece(decode([token], skip_special=False), "rejected") for token in step.rejected]
        place = len(said) - 1 if said and said[-1].source == "target" else len(said)
        return (*said[:place], *fallen, *said[place:])


def open_session(
    pair: str,
    device: str,
    on_measure: Callable[[], None] | None = None,
    *,
    draft: str | None = None,
    threads: int = 0,
    context: int | None = None,
) -> EngineSession:
    """Load a pair; SpecdecError when it can't be run here."""
    from specdec_onnx.models.pair import open_pair
    from specdec_onnx.runtime.engine import load

    # Reading a tokenizer keeps every other Python thread waiting, so that comes before stepping back.
    models = open_pair(pair, draft)
    step_back()
    engine = load(
        models.path, draft=draft, device=device, threads=threads, context=context, on_measure=on_measure
    )
    return EngineSession(engine, Path(pair).resolve().name)


FACTS = ("name", "about", "device", "modes", "context", "exactness")


def main() -> None:
    """Load, say so, answer. The main thread only listens, so that nothing outlives the chat."""
    channel = open_channel()
    messages = incoming(sys.stdin)
    engine = Worker(next(messages), channel)
    Thread(target=engine.run, daemon=True).start()
    for message in messages:
        engine.take(message)
    os._exit(0)  # the chat has gone, and nobody waits for a long pass


class Worker:
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
