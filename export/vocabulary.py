"""Head trimming: a draft proposes only frequent tokens, so its head needs only their rows."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError

_ZIPF_SHIFT, _ZIPF_WEIGHT = 50, 10
"""The law says more than the text does: with less weight, ids of the built-in text displace better ones."""


@dataclass(frozen=True)
class Trimming:
    """The ids a trimmed head keeps, as ascending [first, end) ranges."""

    ranges: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many ids are kept."""
        return sum(end - first for first, end in self.ranges)

    def ids(self) -> NDArray[np.int64]:
        """The kept ids in column order: int64 [size]."""
        return np.concatenate([np.arange(first, end) for first, end in self.ranges])


def trim(
    count: int, special: Iterable[int], vocabulary: int, seen: NDArray[np.int64] | None = None
) -> Trimming | None:
    """Keep the `count` likeliest ids and the special ones; None if that is the whole vocabulary.

    Byte-pair vocabularies number tokens in the order they were merged, so low ids are the frequent ones. How often
    each id was `seen` [vocabulary] in some text corrects that order.
    """
    if count < 1:
        raise SpecdecError(f"cannot trim the head to {count} tokens", fix="give a positive number, or 'none'")
    if count >= vocabulary:
        return None
    first = np.arange(count) if seen is None else likeliest(count, seen)
    extra = [token for token in special if 0 <= token < vocabulary]
    kept = np.union1d(first, np.array(extra, np.int64))
    pieces = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)
    return Trimming(tuple((int(piece[0]), int(piece[-1]) + 1) for piece in pieces))


def likeliest(count: int, seen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The `count` ids with the largest expected share of tokens: Zipf's law over ids, corrected by what was seen."""
    law = 1 / (np.arange(len(seen)) + _ZIPF_SHIFT)
    share = seen / max(int(seen.sum()), 1) + _ZIPF_WEIGHT * law / law.sum()
    return np.argsort(-share, kind="stable")[:count]
