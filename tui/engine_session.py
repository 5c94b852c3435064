"""The one place of the chat that touches the engine; it runs in the engine's process."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_onnx.tui.courtesy import step_back
from specdec_onnx.tui.pieces import Piece, as_source
from specdec_onnx.tui.session import Progress, Request, Round

if TYPE_CHECKING:
    from specdec_onnx.runtime.detokenizer import Detokenizer
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.generator import Step
    from specdec_onnx.runtime.prompt import Prompt


class EngineSession:
    """A `Session` over a loaded engine."""

    def __init__(self, engine: "Engine", name: str) -> None:
        from specdec_onnx.runtime.transcript import Transcript

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
        from specdec_onnx.runtime.detokenizer import Detokenizer

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
        from specdec_onnx.runtime.prompt import Prompt, chat_prompt

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
