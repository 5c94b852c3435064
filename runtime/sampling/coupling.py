"""Sampling whose text depends on the seed alone, not on what was drafted.

Rejection sampling consumes randomness according to how much was drafted, and a planner that measures time never drafts
the same twice. Here each position of the answer has its own noise, and the token is what that noise picks from
the target's distribution (an exponential race, the Gumbel-max trick): an exact sample, and the same with any draft
or none. A draft model that picks with the same noise mostly picks the same token; a draft is kept if it is that token.
Drafter-invariant coupling: Daliri, Musco, Suresh 2024, arXiv 2408.07978. One race keeps at least (1 - TV) / (1 + TV)
of the drafts where rejection sampling keeps 1 - TV.
"""

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.sampling.sampler import Categorical

RARE = 1e-4
"""Tokens less likely than this race as one; only if that one wins do they race among themselves. This saves the noise
of a hundred thousand runners that rarely win, and lowers acceptance by less than their mass."""

_TAIL = np.array([-1])
_ROUNDING = 1e-12
_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The increment and multipliers of SplitMix64 (Steele, Lea, Flood 2014)."""


class Noise:
    """Independent noise for every position and token id, a pure function of the seed."""

    def __init__(self, seed: int) -> None:
        self._key = int(_mix(np.array([(seed + _GOLDEN) % _WORD], np.uint64))[0])

    def pick(self, categorical: Categorical, position: int) -> int:
        """The token id that this position's noise picks: distributed as `categorical`, the same at every call."""
        ids, probs = categorical.ids, categorical.probs
        head = np.flatnonzero(probs >= RARE)
        runners = head if ids is None else ids[head]
        rates = np.append(probs[head], _left(probs[head]))
        winner = self._first(position, np.concatenate([runners, _TAIL]), rates)
        if winner < head.size:
            return int(runners[winner])
        tail = np.flatnonzero(probs < RARE)
        runners = tail if ids is None else ids[tail]
        return int(runners[self._first(position, runners, probs[tail])])

    def _first(self, position: int, runners: NDArray[np.int64], rates: NDArray[np.float64]) -> int:
        """The index of the runner [n] that arrives first, each after an exponential time of its rate [n]."""
        with np.errstate(divide="ignore"):
            return int((self.exponentials(position, runners) / rates).argmin())

    def exponentials(self, position: int, runners: NDArray[np.int64]) -> NDArray[np.float64]:
        """Independent unit exponentials [n] of the runners [n] (any whole numbers) at one position."""
        key = int(_mix(np.array([(self._key + position * _GOLDEN) % _WORD], np.uint64))[0])
        bits = _mix(runners.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))
        return -np.log(((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def _left(probs: NDArray[np.float64]) -> float:
    """1 less the sum of these probabilities [n]; rounding counts as 0."""
    left = 1 - float(probs.sum())
    return left if left > _ROUNDING else 0.0


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser, in place: every bit of a word [n] reaches every bit of the result [n]."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words
