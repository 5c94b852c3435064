"""The free proposer first; the draft model continues its proposal, or replaces it when it promises more."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from specdec_onnx.runtime.planner import Planner
from specdec_onnx.runtime.proposer.base import Proposal, Proposer, Worth
from specdec_onnx.runtime.proposer.draft_model import DraftModel


class Chain:
    """Two proposers in turn, by expected gain."""

    name = "auto"

    def __init__(self, free: Proposer, draft: DraftModel, planner: Planner) -> None:
        self._free, self._draft, self._planner = free, draft, planner
        self._lead: list[int] = []  # free tokens in front of the draft model's part
        self._rests = False

    def propose(self, context: Sequence[int], limit: int, worth: Worth) -> Proposal:
        """Up to `limit` tokens; what the draft model costs is weighed against what it usually brings."""
        free = self._free.propose(context, limit, worth)
        switch = self._planner.draft_switch
        self._rests = not switch.on
        if self._rests:
            switch.idle()
            return free
        if self._planner.gain(list(accumulate(free.confidence, mul))) < self._planner.draft_gain():
            free = Proposal()
        self._lead = free.tokens
        extended = [*context, *free.tokens] if free.tokens else context
        return free.then(self._draft.propose(extended, limit - len(free), worth, after=free))

    def observe(self, emitted: Sequence[int]) -> None:
        """Tell both what the target said; the draft model only if its part was reached."""
        self._free.observe(emitted)
        reached = len(self._lead)
        if not self._rests and list(emitted[:reached]) == self._lead:
            self._draft.observe(emitted[reached:], alone=not reached)
