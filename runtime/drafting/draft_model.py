"""A smaller model of the same vocabulary that writes ahead of the target."""

import time
from bisect import bisect
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.drafting.planner import Planner
from specdec_onnx.runtime.drafting.proposer import Proposal, Worth
from specdec_onnx.runtime.model.decoder import Decoder, Tape
from specdec_onnx.runtime.sampling.sampler import Categorical, Sampler
from specdec_onnx.runtime.sampling.verification import Rule

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)
"""Bounds of the belief bins, finer where a draft model spends most of its tokens."""

PRIOR = 8.0
"""Observations that a belief is worth before anything was seen in its bin."""


class Calibration:
    """Acceptance by bin of belief, smoothed towards the belief itself."""

    def __init__(self) -> None:
        self._kept = [0.0] * (len(EDGES) + 1)
        self._seen = [0.0] * (len(EDGES) + 1)

    def __call__(self, belief: float) -> float:
        """The chance of acceptance when the proposer believes in it with probability `belief`."""
        place = bisect(EDGES, belief)
        return (self._kept[place] + PRIOR * belief) / (self._seen[place] + PRIOR)

    def observe(self, belief: float, kept: bool) -> None:
        """Count one checked token."""
        place = bisect(EDGES, belief)
        self._seen[place] += 1
        self._kept[place] += kept


class DraftModel:
    """Drafts token by token while another one pays; catches up with the context in one pass.

    The tape outlives an answer, so that a conversation is read once; it is compared with the context each time, and
    what differs is cut. What was learned about the draft's beliefs outlives it too, for each kind of rule by itself:
    a likeliest token and a drawn one are kept for different reasons. A proposal is judged once, in its own round.
    """

    name = "draft"

    def __init__(self, decoder: Decoder) -> None:
        self.tape = Tape(decoder)
        self._calibrations: dict[type[Rule], Calibration] = {}
        self._proposal = Proposal()
        self._beliefs: list[float] = []

    def begin(self, rule: Rule, sampler: Sampler, planner: Planner) -> None:
        """Draft the next answer by its rule, with a sampler over the draft's own columns, as far as it pays."""
        self._rule, self._sampler, self._planner = rule, sampler, planner
        self._calibration = self._calibrations.setdefault(type(rule), Calibration())
        self._proposal, self._beliefs = Proposal(), []

    def prepare(self, context: Sequence[int]) -> None:
        """Bring the cache to `context` but for its last token; a context that is too long is left alone."""
        if len(context) <= self.tape.decoder.capacity and (unseen := self._unseen(context)[:-1]):
            self.tape.extend(unseen)

    def propose(
        self, context: Sequence[int], limit: int, worth: Worth, *, after: Proposal | None = None
    ) -> Proposal:
        """Up to `limit` tokens to follow `context`, of which the tokens of `after` at its end are only proposed.

        No tokens when the draft's own context is full.
        """
        before, chance = (len(after), prod(after.confidence)) if after else (0, 1.0)
        for token in after.tokens if after else ():
            self._rule.history.push(token)
        self._proposal, self._beliefs = Proposal(), []
        limit = min(limit, self.tape.decoder.capacity - len(context) - 1)
        try:
            if limit > 0:
                self._extend(self._unseen(context), limit, worth, before, chance)
            return self._proposal
        finally:
            self._rule.history.pop(before + len(self._proposal))

    def observe(self, emitted: Sequence[int], *, alone: bool = True) -> None:
        """Compare the last proposal with what the target said in its place; `alone` if nobody drafted before it."""
        accepted, proposal, beliefs = 0, self._proposal, self._beliefs
        self._proposal, self._beliefs = Proposal(), []
        for drafted, said, belief in zip(proposal.tokens, emitted, beliefs, strict=False):
            self._calibration.observe(belief, drafted == said)
            if drafted != said:
                break
            accepted += 1
        if beliefs:
            self._planner.observe_draft(len(proposal), accepted, alone=alone)

    def _extend(self, unseen: Sequence[int], limit: int, worth: Worth, before: int, chance: float) -> None:
        """Draft until the next token is not worth its pass, or its own chance does not pay for checking it."""
        proposal = self._proposal
        while len(proposal) < limit and self._planner.worth_drafting(chance, before + len(proposal) + 1):
            following, belief = self._rule.expect(self._pass(unseen), self._sampler)
            self._beliefs.append(belief)
            confidence = self._calibration(belief)
            chance *= confidence
            if not worth(chance, before + len(proposal) + 1):
                break
            unseen = [self._draft(following, confidence)]

    def _unseen(self, context: Sequence[int]) -> Sequence[int]:
        """Cut the cache to what it shares with `context`; the rest, at least the last token, is still to be run."""
        return context[self.tape.keep_prefix(context[:-1]) :]

    def _pass(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        start = time.perf_counter()
        row = self.tape.extend(tokens)
        self._planner.observe_draft_pass(len(tokens), time.perf_counter() - start)
        return row

    def _draft(self, following: int | Categorical, confidence: float) -> int:
        """Append the next token to the proposal (drawing it when it has a distribution) and to the history."""
        proposal = self._proposal
        if isinstance(following, Categorical):
            proposal.distributions = [*(proposal.distributions or []), following]
            following = self._rule.draw(following)
        proposal.tokens.append(following)
        proposal.confidence.append(confidence)
        proposal.sources.append(self.name)
        self._rule.history.push(following)
        return following
