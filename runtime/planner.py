"""How many tokens to draft next, and when not to: decided from measured costs, never from a table.

A drafted token is worth its price when the chance that it is accepted buys more tokens than the same time yields
at the current rate R (tokens per second): stop where the product of chances falls under R * (added seconds). That
is the marginal rule of renewal-reward problems; SpecDec++ (arXiv 2405.19715) proves the threshold form optimal.
"""

from specdec_onnx.runtime.costs import LONGEST_DRAFT, Curve

MEMORY = 0.1
"""Weight of the newest round in running averages: they look back about ten rounds."""

REGRET = 0.01
"""Share of the time that may go into finding out whether a draft model that did not pay has begun to."""

HOPE = 0.7
"""Acceptance of a drafted token before any was seen; a few rounds replace it."""

MOST_PATIENCE = 16.0
"""How much longer than the first rest a draft model may rest after failing again and again."""


class Planner:
    """Costs, running averages and the stop rule of one engine; costs in seconds, the rate in tokens per second."""

    def __init__(self, target: Curve, draft: Curve | None = None) -> None:
        self.target, self.draft = target, draft
        self.acceptance = HOPE
        self.idle_rounds = 0
        self._patience = 1.0
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
        """Whether to run the draft model for token `drafted` when all before it are kept with `chance`."""
        return chance * self.acceptance >= self.rate * (self._draft_cost() + self.checking_cost(drafted))

    def gain(self, chances: list[float]) -> float:
        """Tokens that a chain at hand wins beyond what its checking time would yield; `chances` are products."""
        return sum(chances) - self.rate * (self.target(len(chances) + 1) - self.target(1))

    def draft_gain(self, limit: int = LONGEST_DRAFT) -> float:
        """The same for the draft model at its running acceptance and best length; negative when it does not pay."""
        best, total, chance, rate = float("-inf"), 0.0, 1.0, self.rate
        for drafted in range(1, limit + 1):
            chance *= self.acceptance
            total += chance - rate * (self._draft_cost() + self.checking_cost(drafted))
            best = max(best, total)
            if chance < rate * self._draft_cost():
                break
        return best

    def draft_is_on(self) -> bool:
        """Whether the draft model pays, or has rested long enough to be tried again."""
        return self.draft_gain() > 0 or self.idle_rounds >= self._rest()

    def observe_round(self, tokens: int, seconds: float, width: int, verify_seconds: float) -> None:
        """Learn from a finished round: what it yielded, what it took, and what its target pass took."""
        self.target.observe(width, verify_seconds, MEMORY)
        self._tokens += MEMORY * (tokens - self._tokens)
        self._seconds += MEMORY * (seconds - self._seconds)

    def observe_draft(self, drafted: int, accepted: int) -> None:
        """Learn the draft model's acceptance from one of its proposals: kept tokens, and the first that fell."""
        for position in range(min(drafted, accepted + 1)):
            self.acceptance += MEMORY * ((position < accepted) - self.acceptance)
        pays = self.draft_gain() > 0
        self._patience = 1.0 if pays else min(2 * self._patience, MOST_PATIENCE)
        self.idle_rounds = 0

    def observe_draft_pass(self, width: int, seconds: float) -> None:
        """Learn from one timed pass of the draft model."""
        if self.draft is not None:
            self.draft.observe(width, seconds, MEMORY)

    def observe_idle(self) -> None:
        """Count a round in which the draft model rested."""
        self.idle_rounds += 1

    def _draft_cost(self) -> float:
        return self.draft(1) if self.draft is not None else float("inf")

    def _rest(self) -> float:
        """Rounds to rest, so that a trial of one drafted token costs about REGRET of the time; longer after failures."""
        return self._patience * self._draft_cost() / (REGRET * self.target(1))
