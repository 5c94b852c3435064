"""Head trimming: a draft proposes only frequent tokens, so its head needs only their rows."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError


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


def trim(first_ids: int, special: Iterable[int], vocabulary: int) -> Trimming | None:
    """Keep ids below `first_ids` and the special ones above; None if that is the whole vocabulary.

    Byte-pair vocabularies number tokens in the order they were merged, so low ids are the frequent ones.
    """
    if first_ids < 1:
        raise SpecdecError(
            f"cannot trim the head to {first_ids} tokens", fix="give a positive number, or 'none'"
        )
    if first_ids >= vocabulary:
        return None
    ranges = [(0, first_ids)]
    for token in sorted({token for token in special if first_ids <= token < vocabulary}):
        first, end = ranges[-1]
        if token == end:
            ranges[-1] = (first, token + 1)
        else:
            ranges.append((token, token + 1))
    return Trimming(tuple(ranges))


def added_tokens(folder: Path) -> list[int]:
    """Ids of the tokens a tokenizer.json adds to its vocabulary: the special and control ones."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return [int(token["id"]) for token in tokenizer.get("added_tokens", [])]
