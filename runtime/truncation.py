"""Which tokens stay in the race: cuts over a whole vocabulary without sorting it."""

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]

_FOLD = 64
"""Scores per group when a lower bound for the k-th largest is sought: one cheap pass leaves n/64 group maxima."""


def top_k(scores: Scores, k: int) -> NDArray[np.int64]:
    """Ascending indices of the `k` largest of `scores` [n], and of all that equal the smallest of them.

    The k-th largest group maximum is a lower bound for the k-th largest score, so only the few scores above it
    are partitioned.
    """
    folded = scores[: scores.size // _FOLD * _FOLD].reshape(_FOLD, -1).max(axis=0, initial=-np.inf)
    bound = _kth_largest(folded, k) if k <= folded.size else np.float32(-np.inf)
    near = np.flatnonzero(scores >= bound)
    return near[scores[near] >= _kth_largest(scores[near], k)]


def nucleus(weights: Scores, mass: float) -> NDArray[np.int64]:
    """Ascending indices of the largest of `weights` [n] that together reach the share `mass` of their sum, and ties.

    All weights under (1 - mass) * sum / n add up to less than the share that is left out, so only those above are
    sorted.
    """
    total = float(weights.sum())
    near = np.flatnonzero(weights >= (1 - mass) * total / weights.size)
    falling = np.sort(weights[near])[::-1]
    place = int(falling.cumsum(dtype=np.float64).searchsorted(mass * total))
    return near[weights[near] >= falling[min(place, near.size - 1)]]


def _kth_largest(scores: Scores, k: int) -> np.float32:
    return np.partition(scores, scores.size - k)[scores.size - k]
