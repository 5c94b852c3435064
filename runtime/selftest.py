"""What a device's passes need in order to be right and exact, found by running them."""

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.decoder import UNLIMITED, Decoder
from specdec_onnx.runtime.identity import Identity, check_identity
from specdec_onnx.runtime.padding import EIGHTS, PADDINGS

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
