"""The public face: load a model or a pair once, then stream answers from it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import Pair, locate, open_pair
from specdec_onnx.models.tokenizer import Tokenizer, require_text
from specdec_onnx.runtime.chat import Chat
from specdec_onnx.runtime.drafting.speculation import Speculation
from specdec_onnx.runtime.drafting.suffix import Suffix
from specdec_onnx.runtime.generate import Answer, Generator, Result, Round
from specdec_onnx.runtime.machine.costs import Curve
from specdec_onnx.runtime.machine.footprint import context_limit
from specdec_onnx.runtime.machine.loading import Loader, Placement
from specdec_onnx.runtime.machine.profile import Profile
from specdec_onnx.runtime.model.decoder import Cancelled, Decoder, Progress, Tape
from specdec_onnx.runtime.model.device import check_threads
from specdec_onnx.runtime.sampling.sampler import Parameters
from specdec_onnx.runtime.sampling.verification import make_rule
from specdec_onnx.runtime.text.prompt import prompt_tokens, refuse_system
from specdec_onnx.runtime.turns import Steps, Stream, Turn, Turns


def load(
    path: str | Path,
    *,
    draft: str | Path | None = None,
    device: str = "cpu",
    draft_device: str | None = None,
    mode: str = "auto",
    threads: int = 0,
    context: int | None = None,
    on_measure: Callable[[], None] | None = None,
) -> "Engine":
    """Open the pair (or single model) at `path`, a folder or the name of an exported pair, ready to answer.

    `draft` names a draft model for a single model; `device` is cpu, cuda, dml, webgpu or auto (the fastest by
    measurement), `draft_device` the draft's when it runs elsewhere; `mode` is the default way to speculate; `threads`
    0 means the physical cores; `context` limits prompt and answer in tokens. The first load on a machine measures
    what forward passes cost and tests exactness (seconds; kept), after a call of `on_measure`. Raises SpecdecError,
    also when memory won't do and for more threads than there are cores.
    """
    check_threads(threads)
    pair = open_pair(locate(path), Path(draft) if draft else None)
    loader = Loader(context_limit(pair.target, context), threads, on_measure)
    draft_device = draft_device or device
    loader.check(pair, device, draft_device)
    if pair.draft is not None:
        loader.open_ahead(pair.draft, draft_device)
    placement, target, profile = loader.target(pair.target, device)
    places = {"target": placement}
    if pair.draft is None:
        return Engine(pair, target, profile, None, loader.context, mode, places)
    places["draft"], drafter, costs = loader.draft(pair.draft, draft_device)
    return Engine(pair, target, profile, (drafter, costs), loader.context, mode, places)


@dataclass(frozen=True, slots=True)
class _Ask:
    """How an answer is wanted."""

    parameters: Parameters
    mode: str
    suffix: Suffix


class Engine:
    """A loaded target, its draft if there is one, and their caches; one answer at a time.

    `last` is the newest answer with its statistics (among threads, ask the stream for its `result`), `identity` what the self-test found, `profile` and
    `draft_cost` what forward passes cost, `placements` where target and draft run.

    Threads may share an engine: their answers queue, in the order in which their first steps are read. A thread that
    begins an answer overtakes the one it left half-read; a half-read answer of another thread is overtaken when nobody
    has read on for half a minute. Reading on what was overtaken is a SpecdecError.
    """

    def __init__(
        self,
        pair: Pair,
        target: Decoder,
        profile: Profile,
        draft: tuple[Decoder, Curve] | None,
        context: int,
        mode: str = "auto",
        placements: Mapping[str, Placement] | None = None,
    ) -> None:
        self.pair, self.context, self.last = pair, context, Result()
        self.placements = dict(placements or {})
        self.target, self.profile, self.identity = target, profile, profile.identity
        self.draft_cost = draft[1] if draft else None
        self._tape = Tape(target)
        self._vocab_size = min(pair.target.tokenizer.size, target.vocab_size)
        drafter = (pair.draft, *draft) if pair.draft and draft else None
        self.speculation = Speculation(profile.curve, drafter, self._vocab_size)
        self.speculation.planner(mode)
        self.mode, self.modes = mode, self.speculation.modes
        drafted = self.speculation.draft
        self._tapes = [self._tape, *([drafted.tape] if drafted else [])]
        self._turns = Turns(self._allow, self._interrupt)

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer; a draft's ids mean the same tokens."""
        return self.pair.target.tokenizer

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        parameters: Parameters | None = None,
        system: str | None = None,
        raw: bool = False,
        mode: str | None = None,
        suffix: Suffix | None = None,
        on_progress: Progress | None = None,
        **fields: Any,
    ) -> Stream:
        """Answer `prompt`, one step a round; `fields` override single `parameters`.

        Nothing happens before the first step is read, and that waits for the answers that other threads began. A text
        is a user's message and goes through the chat template, unless it is `raw` or the model has none; token ids are
        taken as they are. Only the template can carry a `system` prompt. `on_progress(done, total)` reports prefill.
        Closing what comes back early, or cancelling it, leaves the engine usable. Raises SpecdecError for a prompt that
        does not fit.
        """
        tokens = self._tokens(prompt, system, raw)
        parameters = replace(parameters or Parameters(), **fields)
        mode = mode or self.mode
        self.speculation.planner(mode)
        ask = _Ask(parameters, mode, suffix or self.speculation.suffix())
        turn, result = self._turns.ask(), Result(tokens)
        return Stream(self._steps(turn, result, ask, on_progress), result, partial(self._turns.cancel, turn))

    def generate(self, prompt: str | Sequence[int], **ask: Any) -> str:
        """The whole answer as text; takes what `stream` takes."""
        return "".join(step.text for step in self.stream(prompt, **ask))

    def chat(self, system: str | None = None) -> Chat:
        """A conversation that keeps the caches between turns."""
        return Chat(self, system)

    def cancel(self) -> None:
        """End the running answer within one forward pass; may be called from any thread.

        If none runs, those asked for and not begun yet end before they begin. Answers that wait for the running one go
        on: `cancel` of what `stream` gave, or of a chat, ends that one and no other.
        """
        self._turns.cancel()

    def forget(self) -> None:
        """Empty the caches, so that the next prompt is prefilled as if it were the first.

        Waits for the answers that other threads began.
        """
        with self._turns.only():
            for tape in self._tapes:
                tape.cut(0)

    def _tokens(self, prompt: str | Sequence[int], system: str | None, raw: bool) -> list[int]:
        if system is not None:
            require_text(system, "the system prompt")
        if isinstance(prompt, str):
            require_text(prompt, "the prompt")
            tokens = prompt_tokens(self.pair.target, prompt, system=system, raw=raw)
        else:
            if system:
                refuse_system("token ids go to the model as they are")
            tokens = _token_ids(prompt)
        if not tokens:
            raise SpecdecError("the prompt is empty", fix="give it at least one character")
        if len(tokens) >= self.context:
            raise SpecdecError(
                f"the prompt has {len(tokens)} tokens, the context has room for {self.context}",
                "an answer needs room too",
                "shorten the prompt, or load the model with a larger context (--context)",
            )
        if not all(0 <= token < self._vocab_size for token in tokens):
            raise SpecdecError(f"a token id is outside the vocabulary of {self._vocab_size}")
        return tokens

    def _steps(self, turn: Turn, result: Result, ask: _Ask, on_progress: Progress | None) -> Steps:
        generator = Generator(self._tape, self.speculation.planner(ask.mode), self.context)
        eos = frozenset(self.pair.target.eos_token_ids)
        answer = Answer(generator, self.tokenizer, eos, ask.parameters, result)
        try:
            self._turns.begin(turn)
            self.last = result
            for step in answer.steps(self._rounds(turn, generator, result, ask, on_progress)):
                self._tidy(generator)
                if step.finish_reason:
                    self._turns.end(turn)  # nobody need read on behind the last step
                    yield step
                    return
                self._turns.pause(turn)
                yield step
                self._turns.resume(turn)
        except Cancelled:
            if not generator.context:  # stopped before it began
                self.last = result
            self._leave(turn, generator)
            yield answer.cancelled()
        finally:
            self._leave(turn, generator)

    def _rounds(
        self, turn: Turn, generator: Generator, result: Result, ask: _Ask, on_progress: Progress | None
    ) -> Iterator[Round]:
        """Prefill, then decode; keeps the times."""
        start, statistics = time.perf_counter(), result.statistics
        rule = make_rule(ask.parameters, self._vocab_size, result.prompt)
        ask.suffix.begin(result.prompt)
        proposer = self.speculation.proposer(ask.mode, ask.parameters, rule, ask.suffix)
        statistics.prompt_tokens = len(result.prompt)
        statistics.cached_prompt_tokens = generator.prefill(result.prompt, on_progress)
        self.speculation.prepare(ask.mode, result.prompt)
        statistics.prefill_seconds = time.perf_counter() - start
        if turn.stopped:
            raise Cancelled
        for round_ in generator.rounds(proposer, rule, ask.parameters.max_new_tokens, statistics):
            if not statistics.first_token_seconds:
                statistics.first_token_seconds = time.perf_counter() - start
            yield round_

    def _leave(self, turn: Turn, generator: Generator) -> None:
        """End the turn, if it still is."""
        if self._turns.regain(turn):
            self._tidy(generator)
            self._turns.end(turn)

    def _tidy(self, generator: Generator) -> None:
        """Leave nothing in the caches but the text so far: no draft that fell, no half of a round."""
        for tape in self._tapes:
            tape.keep_prefix(generator.context)

    def _allow(self) -> None:
        for tape in self._tapes:
            tape.decoder.resume()

    def _interrupt(self) -> None:
        for tape in self._tapes:
            tape.decoder.terminate()


def _token_ids(prompt: object) -> list[int]:
    """The ids in `prompt`, any sequence of whole numbers; SpecdecError for all else."""
    fix = "give a text (str), or token ids as a list or an array of whole numbers"
    if isinstance(prompt, (bytes, bytearray, memoryview)):
        raise SpecdecError("the prompt is bytes", "they may be text or token ids", "decode them: .decode()")
    try:
        tokens = list(prompt)  # type: ignore[call-overload]
    except TypeError as error:
        raise SpecdecError(f"the prompt is {prompt!r:.60}", "it is no text and no token ids", fix) from error
    for place, token in enumerate(tokens):
        if not isinstance(token, Integral) or isinstance(token, bool):
            raise SpecdecError(f"item {place} of the prompt is {token!r:.60}", "it is no token id", fix)
    return list(map(int, tokens))
