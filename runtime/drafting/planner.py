"""How many tokens to draft next, and when not to: decided from measured costs, never from a table.

A drafted token is worth its price when the chance that it is accepted buys more tokens than the same time yields
at the current rate R (tokens per second): stop where the product of chances falls under R * (added seconds). That
is the marginal rule of renewal-reward problems; SpecDec++ (arXiv 2405.19715) proves the threshold form optimal.
"""

from collections.abc import Sequence

from specdec_onnx.runtime.machine.costs import Curve, predicted_speedup

DECAY = 0.97
"""What an old round weighs after a new one: the estimate looks back about thirty rounds."""

NEUTRAL_ROUNDS = 8.0
"""Rounds that a trial starts with as evidence, so that the first ones may be unlucky: at plain speed, or at the speed
that was promised for the first trial."""

REGRET = 0.1
"""Share of the time that the first trials may lose; rests grow, and it shrinks, while they fail. A rest that follows
from bad luck costs more than this: on real text the draft model nearly always pays."""

MOST_PATIENCE = 8.0
"""How far rests may grow, as a multiple of the first, when trial after trial fails."""


class Switch:
    """Compares rounds that use the option with plain decoding, in tokens per second."""

    _tokens: float
    _plains: float
    _weight: float
    _lost: float
    _rounds: int

    def __init__(self, promise: float = 1.0) -> None:
        """`promise`: the speed, as a multiple of plain decoding's, that the option is tried for."""
        self._rest, self._patience = 0.0, 1.0
        self._begin_trial(promise)

    @property
    def on(self) -> bool:
        """Whether the option is worth using in the next round."""
        return self._rest <= 0

    def gain(self, worth: float) -> float:
        """Tokens of an average round with the option, less what its time is worth: `worth` tokens a plain round."""
        return (self._tokens - worth * self._plains) / self._weight

    def observe(self, tokens: int, plains: float) -> None:
        """Count a round that used the option: `tokens` came out while plain decoding would have made `plains`."""
        self._tokens = DECAY * self._tokens + tokens
        self._plains = DECAY * self._plains + plains
        self._weight = DECAY * self._weight + 1
        self._lost += plains - tokens
        self._rounds += 1
        if self._tokens < self._plains:
            self._turn_off()

    def idle(self) -> None:
        """Count a plain round; after enough of them a new trial begins."""
        self._rest -= 1

    def _turn_off(self) -> None:
        lasted = self._rounds > 1 / (1 - DECAY)
        self._patience = 1.0 if lasted else self._patience
        self._rest = max(1.0, self._patience * max(self._lost, 0.0) / REGRET)
        self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._begin_trial()

    def _begin_trial(self, promise: float = 1.0) -> None:
        self._plains = self._weight = NEUTRAL_ROUNDS
        self._tokens = promise * NEUTRAL_ROUNDS
        self._lost, self._rounds = 0.0, 0


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
