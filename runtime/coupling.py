"""Sampling whose text depends on the seed alone, not on what was drafted.

Rejection sampling spends randomness according to how much was drafted, and a planner that listens to the clock never
drafts the same twice. Here each position of the answer has its own noise, and the token is what that noise picks from
the target's distribution (an exponential race, the Gumbel-max trick): an exact sample, and the same with any draft
or none. A draft model that picks with the same noise mostly picks the same token; a draft is kept if it is that token.
Drafter-invariant coupling: Daliri, Musco, Suresh 2024, arXiv 2408.07978. It keeps at least (1 - TV) / (1 + TV) of the
drafts where rejection sampling keeps 1 - TV.
"""

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.categorical import Categorical

_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The increment and multipliers of SplitMix64 (Steele, Lea, Flood 2014)."""


class Noise:
    """Independent exponential noise for every position and token id, a pure function of the seed."""

    def __init__(self, seed: int) -> None:
        self._key = _mix_int(seed % _WORD + _GOLDEN)

    def pick(self, categorical: Categorical, position: int) -> int:
        """The token id that this position's noise picks: distributed as `categorical`, the same at every call."""
        arrivals = self.exponentials(position, categorical.token_ids)
        with np.errstate(divide="ignore"):
            arrivals /= categorical.probs
        return int(categorical.token_ids[arrivals.argmin()])

    def exponentials(self, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Unit exponentials [n] of the token ids [n] at one position of the answer."""
        key = _mix_int((self._key + (position + 1) * _GOLDEN) % _WORD)
        bits = _mix(ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))
        uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return np.negative(np.log(uniform, out=uniform), out=uniform)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every bit of a word [n] reaches every bit of the result [n]."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))


def _mix_int(word: int) -> int:
    return int(_mix(np.array([word % _WORD], np.uint64))[0])
