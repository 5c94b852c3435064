"""Whether an option that costs time pays: judged by the clock, switched off when it loses, tried again at a bounded price."""

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
