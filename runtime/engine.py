"""The public entry point: load a model or a pair once, then stream answers from it."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Self

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import Pair, locate, open_pair
from specdec_onnx.models.tokenizer import Tokenizer, require_text
from specdec_onnx.runtime.chat import Chat
from specdec_onnx.runtime.drafting.proposer import Proposer
from specdec_onnx.runtime.drafting.speculation import Speculation
from specdec_onnx.runtime.drafting.suffix import Suffix
from specdec_onnx.runtime.generate import Answer, Hooks, Result
from specdec_onnx.runtime.machine import footprint
from specdec_onnx.runtime.machine.loading import Loaded, load_models
from specdec_onnx.runtime.model.decoder import Tape, set_aside
from specdec_onnx.runtime.model.device import check_cache, check_threads
from specdec_onnx.runtime.sampling.constraint import Constraint
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import Processor
from specdec_onnx.runtime.text.prompt import prompt_tokens, refuse_system
from specdec_onnx.runtime.turns import Stream, Turns

_LOG = logging.getLogger(__name__)


def load(
    path: str | Path,
    *,
    draft: str | Path | None = None,
    device: str = "cpu",
    draft_device: str | None = None,
    mode: str = "auto",
    threads: int = 0,
    context: int | None = None,
    cache: str = "auto",
    prefix_memory: int | None = None,
    prefix_folder: str | Path | None = None,
    on_measure: Callable[[], None] | None = None,
) -> "Engine":
    """Load a pair or a single model, ready to answer.

    The first load on a machine measures what forward passes cost and tests exactness. This takes seconds, and the
    results are stored.

    Args:
        path: A folder, or the name of an exported pair.
        draft: The folder of a draft model, for a single model.
        device: "cpu", "cuda", "dml", "webgpu", or "auto" for the one that measures fastest.
        draft_device: The draft model's device, if it is not the target's.
        mode: The default mode of speculation. The answer is the same in all of them, the speed is not:
            "plain" drafts nothing and costs one target pass per token; "suffix" drafts what followed the same words
            earlier in the text, at no cost but a wider target pass; "draft" drafts with the draft model, at the cost of
            one of its passes per drafted token; "auto" combines both and drafts only as far as it pays, by measurement.
        threads: Threads per model; 0 means one per physical core.
        context: The most tokens that prompt and answer may have together.
        cache: How keys and values are kept: "auto" for float16 where our kernels compute attention, "fp32" for the
            precision of the model's file, which takes twice the memory.
        prefix_memory: The most bytes for what other texts have displaced from the caches, so that a conversation whose
            turn comes again is not read again; the least recently used goes first. 0 keeps nothing. By default, a
            quarter of the free memory and at most 1 GiB.
        prefix_folder: Where `Engine.store_text` keeps texts that later processes need not read again.
        on_measure: Called before anything is measured.

    Raises:
        SpecdecError: The model cannot be loaded here; also if memory is insufficient, or if there are fewer cores than
            `threads`.
    """
    check_threads(threads)
    check_cache(cache)
    pair = open_pair(locate(path), draft or None)
    context = footprint.context_limit(pair.target, context)
    models = load_models(
        pair, device, draft_device or device, context, threads, on_measure, half_cache=cache == "auto"
    )
    memory = footprint.prefix_memory(
        prefix_memory, sum(each.decoder.cache.nbytes for each in models.values())
    )
    return Engine(pair, models, context, mode, memory, Path(prefix_folder) if prefix_folder else None)


class Engine:
    """A loaded target, its draft model if there is one, and their caches; generates one answer at a time.

    Threads and coroutines may share an engine: their answers queue in the order in which their first steps are read.
    A half-read answer is put off when its thread begins another one, or when others wait and nobody has read it for two
    seconds. It continues when it is read again, and only loses the time to read its text again.

    Attributes:
        last: The newest answer with its statistics; threads that share the engine use their stream's `result`.
        identity: The self-test's verdict on exactness.
        profile: What the target's passes cost; `draft_cost` is the draft model's curve, or None.
        models: The loaded models by role ("target", "draft"); `placements` says where they run.
        modes: The modes that this engine has; `mode` is the default.
        stored_texts: Returns the token ids of the texts in the `prefix_folder`.
    """

    def __init__(
        self,
        pair: Pair,
        models: Mapping[str, Loaded],
        context: int,
        mode: str = "auto",
        prefix_memory: int = 0,
        prefix_folder: Path | None = None,
    ) -> None:
        self.pair, self.models, self.context, self.last = pair, models, context, Result()
        self.placements = {role: model.placement for role, model in models.items()}
        self.target, self.profile = models["target"].decoder, models["target"].profile
        self.identity, draft = self.profile.identity, models.get("draft")
        self.draft_cost = draft.profile.curve if draft else None
        self._tape = Tape(self.target)
        self._vocab_size = min(pair.target.tokenizer.size, self.target.vocab_size)
        drafter = (pair.draft, draft.decoder, draft.profile.curve) if pair.draft and draft else None
        self.speculation = Speculation(self.profile.curve, drafter, self._vocab_size)
        self.speculation.planner(mode)
        self.mode, self.modes = mode, self.speculation.modes
        self._tapes = [self._tape, *self.speculation.tapes]
        set_aside(self._tapes, prefix_memory)
        if prefix_folder is not None:
            for tape, model in zip(self._tapes, models.values(), strict=True):
                tape.keep_on_disk(prefix_folder, model.profile.fingerprint)
        self.stored_texts = self._tape.stored_texts
        self._turns = Turns(self._allow, self._interrupt)
        self._closed, self._process = False, os.getpid()
        for role, model in models.items():
            _LOG.info("%s: %s, kernels: %s", role, model.placement, model.decoder.kernels)
        _LOG.info("context of %d tokens, exactness: %s", context, self.identity)

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
        on_progress: Callable[[int, int], None] | None = None,
        logprobs: int | None = None,
        constraint: Constraint | None = None,
        processors: Sequence[Processor] = (),
        proposer: Proposer | None = None,
        **fields: Any,
    ) -> Stream:
        """Answer `prompt`, one step a round.

        Nothing happens before the first step is read, and that one waits for the answers that other threads began. Any
        thread may read any step. A stream that is closed or cancelled early leaves the engine usable; one that is left
        half-read may wait for other answers when it is read again.

        Args:
            prompt: A user's message, formatted by the chat template if the model has one; or token ids.
            parameters: How to sample, and when to end.
            system: A system prompt; requires a chat template.
            raw: Continue the prompt as plain text, without the chat template.
            mode: The mode of speculation, see `load`; the engine's by default.
            suffix: Where suffix drafts come from besides the prompt; a chat keeps one for all its answers.
            on_progress: Called with (done, total), in tokens, while the prompt is read.
            logprobs: Tell how likely each token was, and this many of the likeliest: `Step.logprobs`.
            constraint: What the answer must look like; the extra `grammar` must be installed.
            processors: Change the target's logits, in this order; see `Processor` for the rule that they must keep.
            proposer: Drafts instead of the mode's own proposer. Anything with the methods `propose(context, limit,
                worth)`, which returns token ids, and `observe(tokens)`; whatever it proposes, the answer is the same.
            fields: Single values that override those of `parameters`.

        Raises:
            SpecdecError: The prompt is empty or does not fit, or an argument is invalid.
        """
        self._require_open()
        result, parameters = Result(self._tokens(prompt, system, raw)), _combined(parameters, fields)
        hooks = Hooks(logprobs, constraint, processors, proposer)
        answer = self._answer(result, parameters, mode or self.mode, suffix, hooks)
        turn = self._turns.ask(partial(setattr, self, "last", result))
        return Stream(self._turns.steps(turn, answer, on_progress), result, partial(self._turns.cancel, turn))

    def generate(self, prompt: str | Sequence[int], **options: Any) -> str:
        """The whole answer as text; takes the arguments of `stream`."""
        return "".join(step.text for step in self.stream(prompt, **options))

    def chat(self, system: str | None = None) -> Chat:
        """A conversation that keeps the caches between turns."""
        return Chat(self, system)

    def close(self) -> None:
        """Free the memory of models and caches; running and waiting answers are cancelled first.

        The engine answers nothing more. `with load(…) as engine:` closes it at the end of the block.
        """
        if self._closed:
            return
        self._closed = True
        self._turns.cancel_all()
        with self._turns.only():
            for tape in self._tapes:
                tape.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def cancel(self) -> None:
        """End the running answer within one forward pass; may be called from any thread.

        If none is running, every answer that was requested but has not begun is cancelled. Answers that wait for the
        running one continue; to end one of these, use `cancel` of its stream or chat.
        """
        self._turns.cancel()

    def store_text(self, limit: int | None = None, *, until: Callable[[], bool] = lambda: False) -> None:
        """Keep the newest prompt and answer, or their first `limit` tokens, in the `prefix_folder` for later processes.

        Does nothing for texts of less than 256 tokens, and where there is no such folder; waits for other threads'
        answers. Takes a millisecond for about ten tokens of a model with 1.5 billion weights; gives up, and keeps
        nothing, when `until()` becomes true.
        """
        self._require_open()
        with self._turns.only():
            for tape in self._tapes:
                tape.store(limit, until)

    def forget(self) -> None:
        """Empty the caches, so that the next prompt is read from its beginning; waits for other threads' answers."""
        self._require_open()
        with self._turns.only():
            for tape in self._tapes:
                tape.forget()

    def _require_open(self) -> None:
        """Raise SpecdecError if this engine cannot answer."""
        if self._closed:
            raise SpecdecError("the engine is closed", "close() was called", "load the pair again")
        if os.getpid() != self._process:
            why = "this process was forked from it, and sessions and their threads do not survive that"
            raise SpecdecError("the engine belongs to another process", why, "load the pair in this process")

    def _answer(
        self, result: Result, parameters: Parameters, mode: str, suffix: Suffix | None, hooks: Hooks
    ) -> Answer:
        self.speculation.planner(mode)  # refuses a mode that this engine lacks
        return Answer(
            result,
            self._tape,
            self.pair.target,
            self.speculation,
            self.context,
            parameters=parameters,
            mode=mode,
            suffix=suffix or self.speculation.suffix(),
            hooks=hooks,
        )

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
        for token in tokens:
            if not 0 <= token < self._vocab_size:
                raise self._unknown(token)
        return tokens

    def _unknown(self, token: int) -> SpecdecError:
        """The error for a token id that the model lacks."""
        what = f"token id {token} is outside the vocabulary of {self._vocab_size}"
        text = self.tokenizer.token_text(token) if 0 <= token < self.tokenizer.size else ""
        if text:
            why = f"the tokenizer reads {text!r} as a token that the model was not made for"
            return SpecdecError(what, why, f"leave {text!r} out, or export the model with its own tokenizer")
        return SpecdecError(
            what, "the model has no such token", f"give ids from 0 to {self._vocab_size - 1}, or text"
        )

    def _allow(self) -> None:
        for tape in self._tapes:
            tape.decoder.resume()

    def _interrupt(self) -> None:
        for tape in self._tapes:
            tape.decoder.terminate()


def _combined(parameters: object, fields: Mapping[str, Any]) -> Parameters:
    """The parameters with single values replaced. Raises SpecdecError if they are something else."""
    if parameters is None:
        return Parameters(**fields)
    if not isinstance(parameters, Parameters):
        fix = "give Parameters(temperature=1), or its fields by name: temperature=1"
        raise SpecdecError(f"parameters is {parameters!r:.60}", "it must be a Parameters object", fix)
    return replace(parameters, **fields)


def _token_ids(prompt: object) -> list[int]:
    """The ids in `prompt`, any sequence of whole numbers; SpecdecError for anything else."""
    fix = "give text (str), or token ids as a list or an array of whole numbers"
    if isinstance(prompt, (bytes, bytearray, memoryview)):
        raise SpecdecError("the prompt is bytes", "they may be text or token ids", "decode them: .decode()")
    try:
        tokens = list(prompt)  # type: ignore[call-overload]
    except TypeError as error:
        raise SpecdecError(
            f"the prompt is {prompt!r:.60}", "it is neither text nor token ids", fix
        ) from error
    for index, token in enumerate(tokens):
        if not isinstance(token, Integral) or isinstance(token, bool):
            raise SpecdecError(f"item {index} of the prompt is {token!r:.60}", "it is not a token id", fix)
    return list(map(int, tokens))
