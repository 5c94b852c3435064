"""What forward passes cost on this machine, by their width."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specdec_onnx.runtime.model.decoder import Decoder

LONGEST_DRAFT = 31
"""The longest draft that is verified: together with the token before it, one attention tile."""

TARGET_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 16, 32)
DRAFT_WIDTHS = (1, 2, 4, 8)
_CONTEXT = 64
_LAPS = 4


@dataclass(slots=True)
class Curve:
    """Seconds of a pass by its width, linear between and beyond the measured ones; `scale` follows the machine."""

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
        """Move the scale by `weight` of its difference from one timed pass; passes wider than the table are ignored."""
        if width < len(self._table):
            self.scale += weight * (seconds / self._table[width] - self.scale)

    def _at(self, width: int) -> float:
        last = self.widths[-1]
        if width <= last:
            return float(np.interp(width, self.widths, self.seconds))
        slope = (self.seconds[-1] - self.seconds[-2]) / (last - self.widths[-2])
        return self.seconds[-1] + slope * (width - last)


def predicted_speedup(acceptance: float, target: Curve, draft: Curve, longest: int = 8) -> float:
    """The best speed-up over draft lengths up to `longest`, if all tokens have the same chance of acceptance; at
    least 1.

    A round of k drafted tokens yields 1 + a + … + aᵏ tokens (Leviathan et al., 2023).
    """
    best, tokens = 1.0, 1.0
    for length in range(1, longest + 1):
        tokens += acceptance**length
        best = max(best, tokens * target(1) / (target(length + 1) + length * draft(1)))
    return best


def measure_curve(
    decoder: Decoder, widths: Sequence[int], clock: Callable[[], float] = time.perf_counter
) -> Curve:
    """Time passes of each width that fits after a short context, in several laps; leaves the cache empty.

    Each width gets its median share of a lap, and the curve the level of the fastest lap: so a machine that changes its
    speed between laps does not bend the curve.
    """
    context = min(_CONTEXT, decoder.capacity // 2)
    widths = [width for width in widths if context + decoder.padding.width(width) <= decoder.capacity]
    seconds = np.zeros((_LAPS, len(widths)))
    decoder.rollback(0)
    decoder.forward(arbitrary_tokens(decoder, context), keep=1)
    for lap in range(_LAPS):
        for column, width in enumerate(widths):
            decoder.rollback(context)
            start = clock()
            decoder.forward(arbitrary_tokens(decoder, width))
            seconds[lap, column] = clock() - start
    decoder.rollback(0)
    laps = seconds.sum(axis=1)
    shares = np.median(seconds / laps[:, None], axis=0)
    return Curve(tuple(widths), tuple(np.maximum.accumulate(shares * laps.min()).tolist()))


def arbitrary_tokens(decoder: Decoder, count: int) -> list[int]:
    """Token ids to run passes over; the same at every call."""
    return (np.arange(1, count + 1) * 7919 % min(decoder.vocab_size, 32_000)).tolist()
