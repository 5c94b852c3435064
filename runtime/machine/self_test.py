"""What a device's passes need in order to be right and exact, found by running them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.model.decoder import EIGHTS, PADDINGS, UNLIMITED, Decoder

_CONTEXT, _STEPS = 16, 8
_COMPARED_WIDTHS = (2, 3, 5, 8)


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
    difference = max(
        float(np.max(np.abs(_run(decoder, tokens, width) - plain))) for width in _COMPARED_WIDTHS
    )
    decoder.rollback(0)
    return Identity(difference)


def _run(decoder: Decoder, tokens: list[int], width: int) -> NDArray[np.float32]:
    decoder.rollback(0)
    decoder.forward(tokens[:_CONTEXT], keep=1)
    rest = range(_CONTEXT, len(tokens), width)
    return np.concatenate([decoder.forward(tokens[at : at + width]).copy() for at in rest])


_WIDE, _NARROW = 128, 8
_WIDTHS = (_WIDE, 64, 24)
_WRONG = 0.1


def settle_width(decoder: Decoder) -> None:
    """Limit the decoder's passes to a width whose logits agree with those of narrow passes; empties the cache.

    Rounding moves logits by a small part of their spread; a wrong kernel moves them by about all of it. Some
    graphics drivers have one for wide passes. The CPU's kernels are known to be right.
    """
    if decoder.device.name == "cpu":
        return
    decoder.widest = UNLIMITED
    count = min(_WIDE, decoder.capacity - 8)
    narrow = _logits(decoder, count, _NARROW)
    for width in (UNLIMITED, *(width for width in _WIDTHS[1:] if width < count)):
        decoder.widest = width
        if _distance(_logits(decoder, count, count), narrow) < _WRONG:
            return
    decoder.widest = _NARROW


def settle_padding(decoder: Decoder) -> Identity:
    """Take the cheapest padding that makes plain steps and verifying passes agree bit for bit; the verdict.

    Where none does, the one with the smallest difference is taken, wide ones aside. Empties the cache.
    """
    found = []
    for padding in dict.fromkeys((decoder.padding, *PADDINGS) if decoder.device.name == "cpu" else PADDINGS):
        decoder.padding = padding
        identity = check_identity(decoder)
        if identity.bit_identical:
            return identity
        found.append((identity.max_difference, padding))
    difference, decoder.padding = min((item for item in found if item[1] != EIGHTS), key=lambda item: item[0])
    return Identity(difference)


def _logits(decoder: Decoder, count: int, width: int) -> NDArray[np.float32]:
    tokens = (np.arange(1, count + 1) * 7919 % min(decoder.vocab_size, 32_000)).tolist()
    decoder.rollback(0)
    found = [decoder.forward(tokens[at : at + width]).copy() for at in range(0, count, width)]
    decoder.rollback(0)
    return np.concatenate(found)


def _distance(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Root mean square difference over the spread of the expected logits; infinite for what is no number."""
    used = expected > np.finfo(np.float16).min
    difference = float(
        np.sqrt(np.mean((found[used] - expected[used]) ** 2)) / (np.std(expected[used]) + 1e-9)
    )
    return difference if np.isfinite(difference) else float("inf")
