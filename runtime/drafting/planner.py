"""How many tokens to draft next, and when to draft none, decided from measured costs.

A drafted token is worth its cost if its chance of acceptance is more than the tokens that the same time yields at the
current rate R (tokens per second): drafting stops where the product of chances falls below R * (added seconds). This is
the marginal rule of renewal-reward problems; SpecDec++ (arXiv 2405.19715) proves the threshold form optimal.
"""

from collections.abc import Sequence

from specdec_onnx.runtime.machine.costs import Curve, predicted_speedup

DECAY = 0.97
"""The weight of past rounds when a new one is added: estimates look back about thirty rounds."""

NEUTRAL_ROUNDS = 8.0
"""How many rounds of evidence a trial starts with, so that its first rounds may be unlucky: at plain speed, in the
first trial at the promised one."""

REGRET = 0.1
"""The share of time that the first trials may lose; while they fail, rests grow and the share shrinks. A rest that is
only bad luck costs more than this: on real text the draft model nearly always pays."""

MOST_PATIENCE = 8.0
"""How far rests may grow, as a multiple of the first, while one trial after another fails."""


class Switch:
    """Whether to use the draft model: compares rounds that use it with plain decoding.

    When they are slower, the draft model rests, then a new trial begins.
    """

    def __init__(self, promise: float = 1.0) -> None:
        """`promise` is the predicted speed, as a multiple of plain decoding's."""
        self._rest, self._patience = 0.0, 1.0
        self._tokens = self._plains = self._weight = self._lost = 0.0
        self._rounds = 0
        self._begin_trial(promise)

    @property
    def on(self) -> bool:
        """Whether to use the draft model in the next round."""
        return self._rest <= 0

    def gain(self, worth: float) -> float:
        """Tokens of an average round with the draft model, less its time at `worth` tokens per plain round."""
        return (self._tokens - worth * self._plains) / self._weight

    def observe(self, tokens: int, plains: float) -> None:
        """Count a round with the draft model: it yielded `tokens`, plain decoding would have yielded `plains`."""
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
"""The weight of the newest observation in running averages, which look back about twenty."""

DISTURBED = 1.5
"""At most this multiple of a round's usual cost is counted; the rest is due to other work on the machine."""

HOPE = 0.7
"""The assumed acceptance of a drafted token before any was observed."""


class Planner:
    """Costs, running averages and the stopping rule of one mode; costs in seconds, the rate in tokens per second."""

    def __init__(self, target: Curve, draft: Curve | None = None) -> None:
        self.target, self.draft = target, draft
        self.acceptance = HOPE
        self.draft_switch = Switch(predicted_speedup(HOPE, target, draft) if draft else 1.0)
        self._drafted_alone = False
        self._tokens, self._plains = 1.0, 1.0  # of an average round: its tokens, and its time in plain passes

    def begin_round(self, context: int) -> None:
        """The next passes follow a text of so many tokens."""
        for curve in (self.target, self.draft):
            if curve is not None:
                curve.context = context

    @property
    def rate(self) -> float:
        """Tokens per second now; never below plain decoding's, which is always available."""
        return max(self._tokens / self._plains, 1.0) / self.target(1)

    def checking_cost(self, drafted: int) -> float:
        """Seconds that the `drafted`-th token adds to a target pass."""
        return self.target(drafted + 1) - self.target(drafted)

    def worth_checking(self, chance: float, drafted: int) -> bool:
        """Whether to verify a drafted token, accepted with probability `chance`, as number `drafted` of the pass."""
        return chance >= self.rate * self.checking_cost(drafted)

    def worth_drafting(self, chance: float, drafted: int) -> bool:
        """Whether to run the draft model for token number `drafted` if all before it are accepted with `chance`.

        The first token is always worth it: whether to draft at all is up to the switch.
        """
        if chance == 1.0:
            return True
        return chance * self.acceptance >= self.rate * (self._draft_cost() + self.checking_cost(drafted))

    def gain(self, chances: Sequence[float]) -> float:
        """Tokens of a round that verifies a given chain, less the value of its time; `chances` are products."""
        return 1 + sum(chances) - self.rate * self.target(len(chances) + 1)

    def draft_gain(self) -> float:
        """The same for an average round of the draft model alone."""
        return self.draft_switch.gain(self.rate * self.target(1))

    def observe_draft(self, drafted: int, accepted: int, *, alone: bool = True) -> None:
        """Learn the draft model's acceptance from one of its proposals: accepted tokens, and the first rejected one.

        `alone` means that nobody else drafted in this round, so that its time shows whether the draft model pays.
        """
        for position in range(min(drafted, accepted + 1)):
            self.acceptance += MEMORY * ((position < accepted) - self.acceptance)
        self._drafted_alone = alone

    def observe_round(self, tokens: int, seconds: float, width: int, verify_seconds: float) -> None:
        """Learn from a round: its tokens, its seconds, and the width and seconds of its target pass.

        The pass shows how fast the machine is at the moment, and the round is judged at that speed.
        """
        plain = self.target(1)
        seconds *= self.target(width) / verify_seconds
        self._tokens += MEMORY * (tokens - self._tokens)
        self._plains += MEMORY * (seconds / plain - self._plains)
        if self._drafted_alone:
            usual = self.target(width) + width * self._draft_cost()
            self.draft_switch.observe(tokens, min(seconds, DISTURBED * usual) / plain)
        self.target.observe(width, verify_seconds, MEMORY)
        self._drafted_alone = False

    def observe_draft_pass(self, width: int, seconds: float) -> None:
        """Learn from one timed pass of the draft model."""
        if self.draft is not None:
            self.draft.observe(width, seconds, MEMORY)

    def _draft_cost(self) -> float:
        return self.draft(1) if self.draft is not None else float("inf")
