"""What a device's passes require to be correct and exact, found out by running them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.machine.costs import arbitrary_tokens
from specdec_onnx.runtime.model.decoder import EIGHTS, PADDINGS, UNLIMITED, Decoder

_CONTEXT, _STEPS = 16, 8
_COMPARED_WIDTHS = (2, 3, 5, 8)


@dataclass(frozen=True, slots=True)
class Identity:
    """The largest difference between the logits of plain steps and of verifying passes; 0 means bit-identical."""

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
    plain = _logits(decoder, _STEPS, 1, after=_CONTEXT)
    others = (_logits(decoder, _STEPS, width, after=_CONTEXT) for width in _COMPARED_WIDTHS)
    return Identity(max(float(np.max(np.abs(other - plain))) for other in others))


_WIDE, _NARROW = 128, 8
_WIDTHS = (_WIDE, 64, 24)
_WRONG = 0.1


def settle_width(decoder: Decoder) -> None:
    """Limit the decoder's passes to a width whose logits agree with those of narrow passes; empties the cache.

    Rounding moves logits by a small part of their spread, a wrong kernel by about all of it. Some graphics drivers have
    a wrong kernel for wide passes. The CPU's kernels are known to be correct.
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
    """Choose the cheapest padding with which plain steps and verifying passes agree bit for bit.

    If there is none, the one with the smallest difference is chosen, except for wide ones. Empties the cache.
    """
    differences = []
    for padding in dict.fromkeys((decoder.padding, *PADDINGS) if decoder.device.name == "cpu" else PADDINGS):
        decoder.padding = padding
        identity = check_identity(decoder)
        if identity.bit_identical:
            return identity
        differences.append((identity.max_difference, padding))
    difference, decoder.padding = min(
        (item for item in differences if item[1] != EIGHTS), key=lambda item: item[0]
    )
    return Identity(difference)


def _logits(decoder: Decoder, count: int, width: int, after: int = 0) -> NDArray[np.float32]:
    """The logits of `count` tokens in passes of `width`, after a context of so many; leaves the cache empty."""
    tokens = arbitrary_tokens(decoder, after + count)
    decoder.rollback(0)
    if after:
        decoder.forward(tokens[:after], keep=1)
    passes = [decoder.forward(tokens[at : at + width]).copy() for at in range(after, len(tokens), width)]
    decoder.rollback(0)
    return np.concatenate(passes)


def _distance(logits: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Root mean square difference over the spread of the expected logits; infinite for NaN."""
    used = expected > np.finfo(np.float16).min
    difference = float(
        np.sqrt(np.mean((logits[used] - expected[used]) ** 2)) / (np.std(expected[used]) + 1e-9)
    )
    return difference if np.isfinite(difference) else float("inf")
