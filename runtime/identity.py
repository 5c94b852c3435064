"""The self-test behind the promise: do checked drafts see the very logits of plain decoding here?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.decoder import Decoder

_CONTEXT, _STEPS = 16, 8
_WIDTHS = (2, 3, 5, 8)


@dataclass(frozen=True, slots=True)
class Identity:
    """Largest difference between the logits of plain steps and of verifying passes; 0 means bit-identical."""

    max_difference: float

    @property
    def bit_identical(self) -> bool:
        """True when no logit differed in any bit."""
        return self.max_difference == 0.0

    def __str__(self) -> str:
        if self.bit_identical:
            return "bit-identical"
        return f"equivalent up to near-ties (max diff {self.max_difference:.2g})"


def check_identity(decoder: Decoder) -> Identity:
    """Compare plain steps with passes of several widths over the same tokens; leaves the cache empty."""
    tokens = [
        int(token) for token in np.arange(1, _CONTEXT + _STEPS + 1) * 6007 % min(decoder.vocab_size, 30_000)
    ]
    plain = _run(decoder, tokens, 1)
    difference = max(float(np.max(np.abs(_run(decoder, tokens, width) - plain))) for width in _WIDTHS)
    decoder.rollback(0)
    return Identity(difference)


def _run(decoder: Decoder, tokens: list[int], width: int) -> NDArray[np.float32]:
    decoder.rollback(0)
    decoder.forward(tokens[:_CONTEXT], keep=1)
    rest = range(_CONTEXT, len(tokens), width)
    return np.concatenate([decoder.forward(tokens[at : at + width]).copy() for at in rest])
