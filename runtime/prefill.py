"""Bringing a cache to a text: keep the prefix it already holds, run the rest in chunks."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.decoder import Decoder
from specdec_onnx.runtime.footprint import CHUNK

Progress = Callable[[int, int], None]


class Tape:
    """A decoder together with the tokens its cache holds."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.tokens: list[int] = []

    def keep_prefix(self, tokens: Sequence[int], start: int = 0) -> int:
        """Cut the cache back to what it shares with `tokens` (equal up to `start` is taken as known)."""
        kept = common_prefix(self.tokens, tokens, start)
        self.cut(kept)
        return kept

    def cut(self, length: int) -> None:
        """Forget every token from position `length` on."""
        self.decoder.rollback(length)
        del self.tokens[length:]

    def extend(self, tokens: Sequence[int], progress: Progress | None = None) -> NDArray[np.float32]:
        """Run `tokens` (1 or more) in chunks; the logits [vocab_size] behind the last of them.

        Calls `progress(done, total)` after each chunk; a cancelled pass leaves the chunks before it in place.
        """
        for start in range(0, len(tokens), CHUNK):
            chunk = tokens[start : start + CHUNK]
            row = self.decoder.forward(chunk, keep=1)[-1]
            self.tokens.extend(chunk)
            if progress is not None:
                progress(start + len(chunk), len(tokens))
        return row


def common_prefix(first: Sequence[int], second: Sequence[int], start: int = 0) -> int:
    """Length of the longest common prefix, when the first `start` items are known to agree."""
    end = min(len(first), len(second))
    for position in range(start, end):
        if first[position] != second[position]:
            return position
    return end
