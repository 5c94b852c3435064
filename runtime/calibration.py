"""From what a proposer believes to what the target really accepts, learned while running."""

from bisect import bisect

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)
"""Bounds of the belief bins, finer where a draft model spends most of its tokens."""

PRIOR = 8.0
"""Observations that a belief is worth before anything was seen in its bin."""


class Calibration:
    """Acceptance by bin of belief, smoothed towards the belief itself."""

    def __init__(self) -> None:
        self._kept = [0.0] * (len(EDGES) + 1)
        self._seen = [0.0] * (len(EDGES) + 1)

    def __call__(self, belief: float) -> float:
        """The chance of acceptance when the proposer believes in it with probability `belief`."""
        place = bisect(EDGES, belief)
        return (self._kept[place] + PRIOR * belief) / (self._seen[place] + PRIOR)

    def observe(self, belief: float, kept: bool) -> None:
        """Count one checked token."""
        place = bisect(EDGES, belief)
        self._seen[place] += 1
        self._kept[place] += kept
