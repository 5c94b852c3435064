"""One answer: rounds of proposing and checking, the steps of text they become, and how the answer ends."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_onnx.models.tokenizer import Tokenizer
from specdec_onnx.runtime.drafting.planner import Planner
from specdec_onnx.runtime.drafting.proposer import Proposal, Proposer
from specdec_onnx.runtime.machine.costs import LONGEST_DRAFT
from specdec_onnx.runtime.model.decoder import Progress, Tape
from specdec_onnx.runtime.sampling.sampler import Parameters
from specdec_onnx.runtime.sampling.verification import Rule
from specdec_onnx.runtime.text.detokenizer import Detokenizer, StopStrings


@dataclass(slots=True)
class Statistics:
    """Counts and seconds of one run; rates are derived, so that runs can be added up."""

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

    def observe(self, sources: list[str], accepted: int) -> None:
        """Count one round that drafted `len(sources)` tokens, of which the first `accepted` were kept."""
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
        """New tokens per second, prefill left out."""
        return self.new_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def time_to_first_token_ms(self) -> float:
        """Milliseconds from the call to the first token, prefill included."""
        return 1e3 * self.first_token_seconds

    @property
    def tokens_per_round(self) -> float:
        """Tokens that one target pass yields, its own token included."""
        return self.new_tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the drafted tokens; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def host_seconds(self) -> float:
        """Decoding time spent outside the two sessions."""
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


@dataclass(frozen=True, slots=True)
class Step:
    """One round of an answer: its text (whole characters only) and tokens, and who wrote each of them."""

    text: str
    tokens: tuple[int, ...]
    sources: tuple[str, ...]  # "target", "draft" or "suffix"
    rejected: tuple[int, ...] = ()
    finish_reason: str | None = None  # "eos", "stop", "length", "context" or "cancelled", on the last step

    @property
    def from_draft(self) -> int:
        """How many of the tokens were drafted and kept."""
        return sum(source != "target" for source in self.sources)


@dataclass(frozen=True, slots=True)
class Round:
    """What one target pass brought: the accepted part of the proposal, then the target's own token."""

    tokens: list[int]
    proposal: Proposal
    accepted: int


class Generator:
    """Token level of an answer: the context, the target's cache behind it, and the rounds."""

    def __init__(self, target: Tape, planner: Planner, context_limit: int) -> None:
        self.target, self.planner, self.context_limit = target, planner, context_limit
        self.context: list[int] = []

    def prefill(self, prompt: Sequence[int], progress: Progress | None = None) -> int:
        """Bring the target's cache to the prompt but for its last token; the number of tokens it already held."""
        self.context = list(prompt)
        kept = self.target.keep_prefix(self.context[:-1])
        if unseen := self.context[kept:-1]:
            self.target.extend(unseen, progress)
        return kept

    def rounds(
        self, proposer: Proposer | None, rule: Rule, limit: int, statistics: Statistics
    ) -> Iterator[Round]:
        """Rounds until `limit` tokens are out or the context is full; closing the iterator leaves all consistent."""
        end = min(len(self.context) + limit, self.context_limit)
        while len(self.context) < end:
            start = time.perf_counter()
            yield self._round(proposer, rule, end - len(self.context), statistics, start)

    def cut(self, length: int) -> None:
        """Forget the context from `length` on, in the target's cache too."""
        del self.context[length:]
        self.target.cut(min(length, len(self.target.tokens)))

    def _round(
        self,
        proposer: Proposer | None,
        rule: Rule,
        room: int,
        statistics: Statistics,
        start: float,
    ) -> Round:
        limit = min(room - 1, LONGEST_DRAFT)
        proposal = Proposal()
        if proposer is not None and limit > 0:
            proposal = proposer.propose(self.context, limit, self.planner.worth_checking)
        drafted = time.perf_counter()
        emitted, checked = self._check(proposal, rule)
        if proposer is not None:
            proposer.observe(emitted)
        now = time.perf_counter()
        self.planner.observe_round(len(emitted), now - start, len(proposal) + 1, checked)
        statistics.draft_seconds += drafted - start
        statistics.verify_seconds += checked
        statistics.decode_seconds += now - start
        return Round(emitted, proposal, len(emitted) - 1)

    def _check(self, proposal: Proposal, rule: Rule) -> tuple[list[int], float]:
        """Run the target over the pending token and the proposal; what it emits, and the pass's seconds."""
        pending = self.context[-1]
        start = time.perf_counter()
        rows = self.target.forward([pending, *proposal.tokens])
        seconds = time.perf_counter() - start
        verdict = rule.verify(rows, proposal)
        emitted = [*proposal.tokens[: verdict.accepted], verdict.token]
        self.context.extend(emitted)
        for token in emitted:
            rule.history.push(token)
        self.target.cut(len(self.context) - 1)
        return emitted, seconds


@dataclass(slots=True)
class Result:
    """An answer so far, or finished: `finish_reason` is None while it runs."""

    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    statistics: Statistics = field(default_factory=Statistics)


class Answer:
    """Reads rounds, ends at EOS, a stop string or the last round, and keeps nothing that lies behind the end."""

    def __init__(
        self,
        generator: Generator,
        tokenizer: Tokenizer,
        eos: frozenset[int],
        parameters: Parameters,
        result: Result,
    ) -> None:
        self._generator, self._eos, self._result = generator, eos, result
        self._limit = parameters.max_new_tokens
        self._tokenizer, self._text = tokenizer, Detokenizer(tokenizer, result.prompt)
        self._stops = StopStrings(parameters.stop)

    def steps(self, rounds: Iterable[Round]) -> Iterator[Step]:
        """One step a round; the last one carries the finish reason."""
        for round_ in rounds:
            step = self._step(round_)
            self._record(step)
            yield step
            if step.finish_reason:
                return

    def cancelled(self) -> Step:
        """The step that ends an answer which was stopped from outside."""
        step = Step(self._rest(), (), (), (), "cancelled")
        self._record(step)
        return step

    def _step(self, round_: Round) -> Step:
        shown, reason, count = "", None, 0
        for token in round_.tokens:
            count += 1
            ends = token in self._eos
            shown += self._read(token, ends)
            reason = "stop" if self._stops.found else "eos" if ends else None
            if reason:
                self._generator.cut(len(self._generator.context) - len(round_.tokens) + count)
                break
        reason = reason or self._ran_out(count)
        if reason and reason != "stop":
            shown += self._rest()
        return self._made(round_, count, shown, reason)

    def _read(self, token: int, ends: bool) -> str:
        """What can be shown after `token`; one that gives no text may still complete a stop string."""
        if not ends and self._tokenizer.spelling(token) not in self._tokenizer.special_tokens:
            return self._stops.push(self._text.push(token))
        return self._stops.mark(self._tokenizer.spelling(token), self._text.rest())

    def _made(self, round_: Round, count: int, shown: str, reason: str | None) -> Step:
        """Count and describe the round's first `count` tokens; what lies behind the end was never drafted."""
        drafted, accepted = round_.proposal, round_.accepted
        if count < len(round_.tokens):
            drafted, accepted = drafted.cut(count), count
        self._result.statistics.observe(drafted.sources, accepted)
        sources = (*drafted.sources[:accepted], "target")[:count]
        rejected = tuple(drafted.tokens[accepted:])
        return Step(shown, tuple(round_.tokens[:count]), sources, rejected, reason)

    def _ran_out(self, count: int) -> str | None:
        if len(self._result.tokens) + count >= self._limit:
            return "length"
        return "context" if len(self._generator.context) >= self._generator.context_limit else None

    def _rest(self) -> str:
        text = self._stops.push(self._text.rest())
        return text if self._stops.found else text + self._stops.flush()

    def _record(self, step: Step) -> None:
        result = self._result
        result.tokens.extend(step.tokens)
        result.text += step.text
        result.finish_reason = step.finish_reason
        result.statistics.new_tokens += len(step.tokens)
