"""What a forward pass costs on this machine: measured once, kept beside the identity verdict."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specdec_onnx.runtime.decoder import Decoder

LONGEST_DRAFT = 31
"""Longest draft that is ever verified: with the token before it, one attention tile."""

TARGET_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
DRAFT_WIDTHS = (1, 2, 4, 8)
_CONTEXT = 64
_ROUNDS = 3
MEASURING_ROOM = 96
"""Cache rows that measuring wants; a model with fewer positions is measured behind a shorter context."""


@dataclass(slots=True)
class Curve:
    """Seconds of a pass by its width, linear between and behind the measured ones; `scale` follows the machine."""

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    scale: float = 1.0
    _table: list[float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._table = [self._at(width) for width in range(LONGEST_DRAFT + 3)]

    def __call__(self, width: int) -> float:
        """Seconds that a pass over `width` tokens, up to LONGEST_DRAFT + 2, takes now."""
        return self.scale * self._table[width]

    def observe(self, width: int, seconds: float, weight: float) -> None:
        """Let one timed pass move the scale by `weight` of its difference; wider passes than the table are ignored."""
        if width < len(self._table):
            self.scale += weight * (seconds / self._table[width] - self.scale)

    def _at(self, width: int) -> float:
        last = self.widths[-1]
        if width <= last:
            return float(np.interp(width, self.widths, self.seconds))
        slope = (self.seconds[-1] - self.seconds[-2]) / (last - self.widths[-2])
        return self.seconds[-1] + slope * (width - last)


def measure_curve(
    decoder: Decoder, widths: Sequence[int], clock: Callable[[], float] = time.perf_counter
) -> Curve:
    """Time passes of each width behind a short context, the best of a few rounds; leaves the cache empty."""
    best = dict.fromkeys(widths, float("inf"))
    context = min(_CONTEXT, decoder.capacity // 2)
    decoder.rollback(0)
    decoder.forward(_tokens(decoder, context), keep=1)
    for _ in range(_ROUNDS):  # the first round warms up: its times are hardly ever the best
        for width in widths:
            decoder.rollback(context)
            start = clock()
            decoder.forward(_tokens(decoder, width))
            best[width] = min(best[width], clock() - start)
    decoder.rollback(0)
    return Curve(tuple(widths), tuple(np.maximum.accumulate(list(best.values())).tolist()))


def _tokens(decoder: Decoder, count: int) -> list[int]:
    return (np.arange(1, count + 1) * 7919 % min(decoder.vocab_size, 32_000)).tolist()
