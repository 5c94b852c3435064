"""Bringing a cache to a text: keep the prefix it already holds, run the rest in chunks."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.decoder import Decoder
from specdec_onnx.runtime.footprint import CHUNK

_NEAR = 64
"""Where texts usually differ, counted from the end: what was drafted last."""

Progress = Callable[[int, int], None]


class Tape:
    """A decoder together with the tokens its cache holds.

    The tokens are all that says whose text the cache is: whoever goes on with a text compares it with them, every time.
    They never run ahead of the cache, also when an interrupt falls between the two.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.tokens: list[int] = []

    def keep_prefix(self, tokens: Sequence[int]) -> int:
        """Cut the cache back to what it shares with `tokens`, and say how much that is."""
        kept = common_prefix(self.tokens, tokens)
        self.cut(kept)
        return kept

    def cut(self, length: int) -> None:
        """Forget every token from position `length` on."""
        del self.tokens[length:]
        self.decoder.rollback(len(self.tokens))

    def forward(self, tokens: Sequence[int], *, keep: int = 0) -> NDArray[np.float32]:
        """One pass behind the tokens held; takes and gives what `Decoder.forward` does."""
        self.decoder.rollback(len(self.tokens))
        rows = self.decoder.forward(tokens, keep=keep)
        self.tokens.extend(tokens)
        return rows

    def extend(self, tokens: Sequence[int], progress: Progress | None = None) -> NDArray[np.float32]:
        """Run `tokens` (1 or more) in chunks; the logits [vocab_size] behind the last of them.

        Calls `progress(done, total)` after each chunk; a cancelled pass leaves the chunks before it in place.
        """
        for start in range(0, len(tokens), CHUNK):
            chunk = tokens[start : start + CHUNK]
            row = self.forward(chunk, keep=1)[-1]
            if progress is not None:
                progress(start + len(chunk), len(tokens))
        return row


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix, by slices: it is asked every round, of texts that differ near their ends."""
    first, second = _as_list(first), _as_list(second)
    agreed, end = 0, min(len(first), len(second))  # the first difference, if any, lies in between
    probe = max(end - _NEAR, end // 2)
    while agreed < end:
        if first[agreed:probe] == second[agreed:probe]:
            agreed = probe
        else:
            end = probe - 1
        probe = (agreed + end + 1) // 2
    return agreed


def _as_list(tokens: Sequence[int]) -> list[int]:
    return tokens if isinstance(tokens, list) else list(tokens)
