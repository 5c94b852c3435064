"""The loop: propose, check in one target pass, keep what the target agrees with, repeat."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specdec_onnx.runtime.costs import LONGEST_DRAFT
from specdec_onnx.runtime.planner import Planner
from specdec_onnx.runtime.prefill import Progress, Tape
from specdec_onnx.runtime.proposer.base import Proposal, Proposer
from specdec_onnx.runtime.rules import Rule
from specdec_onnx.runtime.statistics import Statistics


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
