"""How many tokens to draft next, and when not to: decided from measured costs, never from a table.

A drafted token is worth its price when the chance that it is accepted buys more tokens than the same time yields
at the current rate R (tokens per second): stop where the product of chances falls under R * (added seconds). That
is the marginal rule of renewal-reward problems; SpecDec++ (arXiv 2405.19715) proves the threshold form optimal.
"""

from collections.abc import Sequence

from specdec_onnx.runtime.costs import Curve, predicted_speedup
from specdec_onnx.runtime.switch import Switch

MEMORY = 0.05
"""Weight of the newest observation in running averages: they look back about twenty."""

DISTURBED = 1.5
"""A round that took longer than this many times its usual cost met something else on the machine; no more is counted."""

HOPE = 0.7
"""Acceptance of a drafted token before any was seen; a few rounds replace it."""


class Planner:
    """Costs, running averages and the stop rule of one engine; costs in seconds, the rate in tokens per second."""

    def __init__(self, target: Curve, draft: Curve | None = None) -> None:
        self.target, self.draft = target, draft
        self.acceptance = HOPE
        self.draft_switch = Switch(predicted_speedup(HOPE, target, draft) if draft else 1.0)
        self._drafted_alone = False
        self._tokens, self._seconds = 1.0, target(1)

    @property
    def rate(self) -> float:
        """Tokens per second now; never below plain decoding's, which is always to be had."""
        return max(self._tokens / self._seconds, 1 / self.target(1))

    def checking_cost(self, drafted: int) -> float:
        """Seconds that the `drafted`-th token adds to a target pass."""
        return self.target(drafted + 1) - self.target(drafted)

    def worth_checking(self, chance: float, drafted: int) -> bool:
        """Whether a token at hand, kept with probability `chance`, belongs in the pass as number `drafted`."""
        return chance >= self.rate * self.checking_cost(drafted)

    def worth_drafting(self, chance: float, drafted: int) -> bool:
        """Whether to run the draft model for token `drafted` when all before it are kept with `chance`.

        The first token of all is always worth it: whether to draft at all is the switch's business.
        """
        if chance == 1.0:
            return True
        return chance * self.acceptance >= self.rate * (self._draft_cost() + self.checking_cost(drafted))

    def gain(self, chances: Sequence[float]) -> float:
        """Tokens of a round that checks a chain at hand, less what its time is worth; `chances` are products."""
        return 1 + sum(chances) - self.rate * self.target(len(chances) + 1)

    def draft_gain(self) -> float:
        """The same for an average round of the draft model alone."""
        return self.draft_switch.gain(self.rate * self.target(1))

    def observe_draft(self, drafted: int, accepted: int, *, alone: bool = True) -> None:
        """Learn the draft model's acceptance from one of its proposals: kept tokens, and the first that fell.

        `alone` says that nobody else drafted in this round, so that its time tells whether the draft model pays.
        """
        for position in range(min(drafted, accepted + 1)):
            self.acceptance += MEMORY * ((position < accepted) - self.acceptance)
        self._drafted_alone = alone

    def observe_round(self, tokens: int, seconds: float, width: int, verify_seconds: float) -> None:
        """Learn from a finished round: what it yielded, what it took, and what its target pass took.

        The pass tells how fast the machine is just now, so a round is judged at the speed that it met.
        """
        seconds *= self.target(width) / verify_seconds
        self.target.observe(width, verify_seconds, MEMORY)
        self._tokens += MEMORY * (tokens - self._tokens)
        self._seconds += MEMORY * (seconds - self._seconds)
        if self._drafted_alone:
            usual = self.target(width) + width * self._draft_cost()
            self.draft_switch.observe(tokens, min(seconds, DISTURBED * usual) / self.target(1))
        self._drafted_alone = False

    def observe_draft_pass(self, width: int, seconds: float) -> None:
        """Learn from one timed pass of the draft model."""
        if self.draft is not None:
            self.draft.observe(width, seconds, MEMORY)

    def _draft_cost(self) -> float:
        return self.draft(1) if self.draft is not None else float("inf")
