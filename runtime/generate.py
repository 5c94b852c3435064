"""One answer from its prompt to its last step: prefill, rounds of drafting and verifying, limits and endings.

A round is one pass of the target over the last token and the tokens drafted after it. The pass yields the accepted
part of the draft and one token of the target's own, so every round yields at least one token, like a plain step.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import itemgetter
from typing import Any, Self

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.drafting.proposer import Proposal, Proposer
from specdec_onnx.runtime.drafting.speculation import Speculation
from specdec_onnx.runtime.drafting.suffix import Suffix
from specdec_onnx.runtime.machine.costs import LONGEST_DRAFT
from specdec_onnx.runtime.model.decoder import Tape
from specdec_onnx.runtime.sampling.constraint import Constraint, Guide
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import Logprob, Processing, Processor, logprob
from specdec_onnx.runtime.sampling.verification import Rows, make_rule
from specdec_onnx.runtime.text.detokenizer import Detokenizer, StopStrings

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Statistics:
    """Counts and seconds of one answer; rates are derived, so that answers can be added up.

    Attributes:
        cached_prompt_tokens: Prompt tokens that were still in the cache.
        new_tokens: Tokens of the answer.
        rounds: Target passes after the prompt.
        drafted: Proposed tokens; `accepted` counts those that the target kept. Both are also counted by position in
            the draft, from its first token, and by source ("draft", "suffix", "grammar" or a custom proposer's name).
        prefill_seconds: Time to read the prompt; `decode_seconds` is the time for everything after it.
        first_token_seconds: Time from the call to the first token.
        draft_seconds: The part of `decode_seconds` spent on drafting; `verify_seconds` is the target's part.
    """

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    new_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    drafted_by_source: dict[str, int] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0

    @classmethod
    def total(cls, answers: Iterable["Statistics"]) -> Self:
        """The counts and seconds of several answers added up."""
        parts = [cls(), *answers]
        return cls(**{name: _sum([getattr(one, name) for one in parts]) for name in cls.__dataclass_fields__})

    def observe(self, sources: list[str], accepted: int) -> None:
        """Count one round that drafted a token for each of `sources`, of which the first `accepted` were kept."""
        self.rounds += 1
        self.drafted += len(sources)
        self.accepted += accepted
        for position, source in enumerate(sources):
            if position == len(self.drafted_by_position):
                self.drafted_by_position.append(0)
                self.accepted_by_position.append(0)
            kept = position < accepted
            self.drafted_by_position[position] += 1
            self.accepted_by_position[position] += kept
            self.drafted_by_source[source] = self.drafted_by_source.get(source, 0) + 1
            self.accepted_by_source[source] = self.accepted_by_source.get(source, 0) + kept

    @property
    def decode_tokens_per_second(self) -> float:
        """New tokens per second, without prefill."""
        return self.new_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def time_to_first_token_ms(self) -> float:
        """Milliseconds from the call to the first token, prefill included."""
        return 1e3 * self.first_token_seconds

    @property
    def tokens_per_round(self) -> float:
        """Tokens that one target pass yields, its own one included."""
        return self.new_tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """The accepted share of the drafted tokens; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def host_seconds(self) -> float:
        """Decoding time outside of the two sessions."""
        return max(0.0, self.decode_seconds - self.draft_seconds - self.verify_seconds)

    def as_dict(self) -> dict[str, Any]:
        """Every count and rate, ready for JSON."""
        counts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return counts | {
            "decode_tokens_per_second": round(self.decode_tokens_per_second, 3),
            "time_to_first_token_ms": round(self.time_to_first_token_ms, 3),
            "tokens_per_round": round(self.tokens_per_round, 4),
            "acceptance_rate": round(self.acceptance_rate, 4),
            "host_seconds": self.host_seconds,
        }


def _sum(values: Sequence[Any]) -> Any:
    """The sum of numbers, of each place of lists, or of each key of dictionaries."""
    if isinstance(values[0], list):
        return [sum(column) for column in zip_longest(*values, fillvalue=0)]
    if isinstance(values[0], dict):
        keys = dict.fromkeys(key for each in values for key in each)
        return {key: sum(each.get(key, 0) for each in values) for key in keys}
    return sum(values)


@dataclass(frozen=True, slots=True)
class Step:
    """One round of an answer.

    Attributes:
        text: What can be shown now: whole characters, and nothing that may still become a stop string.
        tokens: The ids of the round's tokens.
        sources: Who wrote each token: "target", "draft", "suffix", "grammar" or a custom proposer's name.
        rejected: The drafted tokens that the target did not keep.
        finish_reason: None until the last step, then "eos", "stop", "length", "context" or "cancelled".
        logprobs: How likely each token was, if that was asked for.
    """

    text: str
    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    rejected: tuple[int, ...] = ()
    finish_reason: str | None = None
    logprobs: tuple[Logprob, ...] = ()


@dataclass(slots=True)
class Result:
    """An answer so far, or finished: `finish_reason` is None while it runs."""

    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    statistics: Statistics = field(default_factory=Statistics)
    logprobs: list[Logprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What an application may add to an answer; see `Engine.stream`."""

    logprobs: int | None = None
    constraint: Constraint | None = None
    processors: Sequence[Processor] = ()
    proposer: Proposer | None = None

    def __post_init__(self) -> None:
        count = self.logprobs
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
            raise SpecdecError(f"logprobs is {count!r}", "it must be a whole number, 0 or more, or None")
        if self.constraint is not None and not isinstance(self.constraint, Constraint):
            fix = "make one with Constraint.json_schema, .regex or .lark"
            raise SpecdecError(f"constraint is {self.constraint!r:.60}", "it must be a Constraint", fix)


class Answer:
    """Generates one answer into `result`; `steps` is the generation loop.

    The caches of `target` and of the draft model always hold a prefix of prompt and answer: `tidy` cuts them back to it
    after each round, and whoever ends an answer in the middle of a round calls it too.
    """

    def __init__(
        self,
        result: Result,
        target: Tape,
        model: ModelFolder,
        speculation: Speculation,
        context_limit: int,
        *,
        parameters: Parameters,
        mode: str,
        suffix: Suffix,
        hooks: Hooks,
    ) -> None:
        self.result, self._context = result, list(result.prompt)
        self._target, self._speculation, self._context_limit = target, speculation, context_limit
        self._parameters, self._mode, self._suffix = parameters, mode, suffix
        self._tokenizer, self._eos = model.tokenizer, frozenset(model.eos_token_ids)
        self._text = Detokenizer(model.tokenizer, result.prompt)
        self._stops = StopStrings(parameters.stop)
        self._hooks, vocab_size, prompt = hooks, speculation.vocab_size, self._context
        guide = None
        if hooks.constraint is not None:
            guide = Guide(hooks.constraint, model.tokenizer, vocab_size, model.eos_token_ids)
        processing = Processing(prompt, hooks.processors) if hooks.processors else None
        self._rule = make_rule(parameters, vocab_size, prompt, processing=processing, guide=guide)
        self._proposer: Proposer | None = None

    def read(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Read the text so far, except for its last token: before the first step, and after another answer has run.

        `on_progress(done, total)` counts the tokens that are not in the cache. Raises Cancelled when a pass is stopped.
        """
        start, statistics, context = time.perf_counter(), self.result.statistics, self._context
        self._proposer = self._speculation.proposer(
            self._mode, self._parameters, self._rule, self._suffix, self._hooks.proposer
        )
        self._suffix.begin(context)
        known = self._target.turn_to(context[:-1])
        if not self.result.tokens:
            statistics.prompt_tokens, statistics.cached_prompt_tokens = len(context), known
        self._target.forward(context[known:-1], keep=1, progress=on_progress)
        self._speculation.prepare(self._mode, context)
        statistics.prefill_seconds += time.perf_counter() - start

    def steps(self) -> Iterator[Step]:
        """Yield one step a round, after `read`; the last one has a `finish_reason`. Raises Cancelled if stopped."""
        start, statistics, context = time.perf_counter(), self.result.statistics, self._context
        rule, planner = self._rule, self._speculation.planner(self._mode)
        while not self.result.finish_reason:
            begun, proposal, proposer = time.perf_counter(), Proposal(), self._proposer
            planner.begin_round(len(context))
            longest = min(self._room()[0] - 1, LONGEST_DRAFT)
            if proposer is not None and longest > 0:
                proposal = proposer.propose(context, longest, planner.worth_checking)
            drafted = time.perf_counter()
            self._target.cut(len(context) - 1)
            rows = self._target.forward([context[-1], *proposal.tokens])
            verified = time.perf_counter()
            accepted, own_token = rule.verify(rows, proposal)
            tokens = [*proposal.tokens[:accepted], own_token]
            rule.history.extend(tokens)
            if proposer is not None:
                proposer.observe(tokens)
            done = time.perf_counter()
            planner.observe_round(len(tokens), done - begun, len(proposal) + 1, verified - drafted)
            statistics.draft_seconds += drafted - begun
            statistics.verify_seconds += verified - drafted
            statistics.decode_seconds += done - begun
            if not statistics.first_token_seconds:
                statistics.first_token_seconds = statistics.prefill_seconds + done - start
            yield self._step(proposal, tokens, rows)

    def cancelled(self) -> Step:
        """The last step of an answer that was stopped from outside."""
        return self._record(Step(self._held_text(), (), (), (), "cancelled"))

    def tidy(self) -> None:
        """Leave nothing in the caches but prompt and answer: no rejected draft, no unfinished round."""
        for tape in (self._target, *self._speculation.tapes):
            tape.keep_prefix(self._context)

    def _room(self) -> tuple[int, str]:
        """How many tokens may still come, and the reason to end when none may."""
        left = self._parameters.max_new_tokens - len(self.result.tokens)
        return min((left, "length"), (self._context_limit - len(self._context), "context"), key=itemgetter(0))

    def _step(self, proposal: Proposal, tokens: list[int], rows: Rows) -> Step:
        """Take a round's tokens up to the end of the answer; those after it count as never drafted."""
        text, reason, accepted = "", None, len(tokens) - 1
        for count, token in enumerate(tokens, 1):
            text += self._read(token)
            reason = "stop" if self._stops.found else "eos" if token in self._eos else None
            if reason and count < len(tokens):
                proposal, accepted, tokens = proposal.cut(count), count, tokens[:count]
            if reason:
                break
        self._context += tokens
        self.result.tokens += tokens
        room, out_of_room = self._room()
        reason = reason or (out_of_room if room <= 0 else None)
        if reason and reason != "stop":
            text += self._held_text()
        self.result.statistics.observe(proposal.sources, accepted)
        sources = (*proposal.sources[:accepted], "target")[: len(tokens)]
        logprobs = self._logprobs(rows, tokens)
        step = Step(text, tuple(tokens), sources, tuple(proposal.tokens[accepted:]), reason, logprobs)
        self.tidy()
        return self._record(step)

    def _logprobs(self, rows: Rows, tokens: Sequence[int]) -> tuple[Logprob, ...]:
        """How likely a round's tokens were, by the target's logits [k+1, V], if anybody asked."""
        top, size = self._hooks.logprobs, self._speculation.vocab_size
        if top is None:
            return ()
        return tuple(logprob(row[:size], token, top) for row, token in zip(rows, tokens, strict=False))

    def _read(self, token: int) -> str:
        """What can be shown after `token`; a token without text may still complete a stop string."""
        spelling = self._tokenizer.spelling(token)
        if token in self._eos or spelling in self._tokenizer.special_tokens:
            return self._stops.mark(spelling, self._text.rest())
        return self._stops.push(self._text.push(token))

    def _held_text(self) -> str:
        """What was held back for a character or a stop string that never came."""
        text = self._stops.push(self._text.rest())
        return text if self._stops.found else text + self._stops.flush()

    def _record(self, step: Step) -> Step:
        result = self.result
        result.text += step.text
        result.finish_reason = step.finish_reason
        if step.finish_reason:
            _LOG.debug("answer: %s, %s", step.finish_reason, result.statistics)
        result.logprobs += step.logprobs
        result.statistics.new_tokens += len(step.tokens)
        return step
