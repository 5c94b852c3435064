"""Distributions over token ids: dense, or only the ids that truncation left."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Categorical:
    """Probabilities [n], float64 with sum 1, of the ascending token ids [n]; without ids, entry i is token i's."""

    probs: Floats
    ids: Ids | None = None

    @classmethod
    def one_hot(cls, token: int) -> "Categorical":
        """All mass on one token: what a deterministic proposer draws from."""
        return cls(np.ones(1), np.array([token], np.int64))

    def p(self, token: int) -> float:
        """The probability of one token id; 0 for an id outside the support."""
        place = token if self.ids is None else int(self.ids.searchsorted(token))
        if not 0 <= place < self.probs.size or (self.ids is not None and self.ids[place] != token):
            return 0.0
        return float(self.probs[place])

    def at(self, ids: Ids) -> Floats:
        """The probabilities [n] of many token ids [n]; 0 outside the support."""
        places = ids if self.ids is None else self.ids.searchsorted(ids)
        inside = places < self.probs.size
        places = np.where(inside, places, 0)
        if self.ids is not None:
            inside &= self.ids[places] == ids
        return np.where(inside, self.probs[places], 0.0)

    def excess(self, other: "Categorical", scale: float = 1.0) -> Floats:
        """max(scale * p - q, 0) over this distribution's own support [n], q being `other`; not normalised."""
        weights = self.probs * scale
        if self.ids is None and other.ids is None:
            shared = min(weights.size, other.probs.size)
            weights[:shared] -= other.probs[:shared]
        elif self.ids is None and other.ids is not None:
            inside = other.ids < weights.size
            weights[other.ids[inside]] -= other.probs[inside]
        else:
            weights -= other.at(self.token_ids)
        return np.maximum(weights, 0.0, out=weights)

    def reweighted(self, weights: Floats) -> "Categorical":
        """The distribution over the same support with these weights [n]; unchanged when they are all 0.

        All 0 means that p and q differ by rounding only, so p itself is the residual.
        """
        total = float(weights.sum())
        return Categorical(weights / total, self.ids) if total > 0 else self

    def residual(self, other: "Categorical", scale: float = 1.0) -> "Categorical":
        """max(scale * p - q, 0), normalised: what is left to draw from after a draft out of q was refused."""
        return self.reweighted(self.excess(other, scale))

    @property
    def token_ids(self) -> Ids:
        """The token ids [n] that the probabilities belong to, ascending."""
        return np.arange(self.probs.size) if self.ids is None else self.ids


class Chance:
    """The randomness of one answer: numpy's PCG64 under a seed (None: a fresh one)."""

    def __init__(self, seed: int | None = None) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def flip(self, probability: float) -> bool:
        """True with this probability (always from 1 on, never at 0)."""
        return bool(self._generator.random() < probability)

    def draw(self, categorical: Categorical) -> int:
        """A token id drawn from the distribution."""
        cumulative = categorical.probs.cumsum()
        place = int(cumulative.searchsorted(self._generator.random() * cumulative[-1], side="right"))
        return place if categorical.ids is None else int(categorical.ids[place])
