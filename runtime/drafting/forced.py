"""Drafts from a grammar: where only one text can follow, such as a schema's key, its tokens cost no pass of a model."""

from collections.abc import Sequence

from specdec_onnx.runtime.drafting.proposer import Proposal, Proposer, Worth
from specdec_onnx.runtime.sampling.constraint import Guide

GRAMMAR = "grammar"
"""The source of forced tokens."""

MEMORY = 0.05
"""The weight of the newest verdict: the share looks back over about twenty."""


class Share:
    """The running share of forced tokens that the target kept; it may divide the same text into other tokens."""

    def __init__(self) -> None:
        self.value = 0.9

    def observe(self, right: bool) -> None:
        """Learn one verdict."""
        self.value += MEMORY * (right - self.value)


class Forced:
    """The proposer of what a grammar forces; where it forces nothing, another one's draft as far as it is allowed."""

    name = GRAMMAR

    def __init__(self, guide: Guide, free: Proposer, share: Share) -> None:
        self._guide, self._free, self._share = guide, free, share
        self._forced: list[int] = []

    def propose(self, context: Sequence[int], limit: int, worth: Worth) -> Proposal:
        """Up to `limit` tokens; the other proposer's draft may also begin with the forced ones and go on."""
        self._forced = self._guide.forced()
        proposal = Proposal()
        chance = share = self._share.value
        for token in self._forced[:limit]:
            if not worth(chance, len(proposal) + 1):
                break
            proposal.add(token, share, self.name)
            chance *= share
        free = self._free.propose(context, limit, worth)
        if free.distributions is not None:
            return proposal if proposal.tokens else free  # the target rejects what is not allowed
        free = free.cut(len(self._guide.keep(free.tokens)))
        longer = len(free) > len(proposal) and free.tokens[: len(proposal)] == proposal.tokens
        return free if longer else proposal

    def observe(self, emitted: Sequence[int]) -> None:
        """Learn from the target's tokens whether it divides forced text as expected."""
        forced, self._forced = self._forced, []
        for token, actual in zip(forced, emitted, strict=False):
            self._share.observe(token == actual)
            if token != actual:
                break
        self._free.observe(emitted)
