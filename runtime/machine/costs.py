"""What forward passes cost on this machine, by their width and by the text before them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.model.decoder import Decoder

LONGEST_DRAFT = 31
"""The longest draft that is verified: together with the token before it, one attention tile."""

TARGET_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 16, 32)
DRAFT_WIDTHS = (1, 2, 4, 8)
_CONTEXT, _LONG = 64, 4096
_LONG_WIDTHS = (1, 8, 32)
"""What is timed after a long text; attention's part is read off these passes, and the rest does not depend on the text."""
_LAPS = 4


@dataclass(slots=True)
class Curve:
    """Seconds of a pass by its width, linear between and beyond the measured ones.

    Attributes:
        widths: The measured widths, and `seconds` of a pass over each after a short text.
        per_token: By width, the seconds that each token of the text before adds: attention's part.
        scale: Follows the speed of the machine.
        context: How many tokens the text before the next pass has.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    per_token: tuple[float, ...] = ()
    scale: float = 1.0
    context: int = 0
    _table: list[float] = field(init=False, repr=False)
    _slopes: list[float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        every = range(LONGEST_DRAFT + 3)
        self._table = [self._at(width, self.seconds) for width in every]
        self._slopes = [self._at(width, self.per_token) if self.per_token else 0.0 for width in every]

    def __call__(self, width: int) -> float:
        """Seconds that a pass over `width` tokens, up to LONGEST_DRAFT + 2, takes now."""
        return self.scale * self._unscaled(width)

    def observe(self, width: int, seconds: float, weight: float) -> None:
        """Move the scale by `weight` of its difference from one timed pass; passes wider than the table are ignored."""
        if width < len(self._table):
            self.scale += weight * (seconds / self._unscaled(width) - self.scale)

    def _unscaled(self, width: int) -> float:
        return self._table[width] + self.context * self._slopes[width]

    def _at(self, width: int, measured: Sequence[float]) -> float:
        last = self.widths[-1]
        if width <= last:
            return float(np.interp(width, self.widths, measured))
        slope = (measured[-1] - measured[-2]) / (last - self.widths[-2])
        return measured[-1] + slope * (width - last)


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
    """Time passes of each width that fits after a short text, in several laps; leaves the cache empty.

    Each pass gets its median share of a lap, and the curve the level of the fastest lap: so a machine that changes its
    speed between laps does not bend the curve.
    """
    context = min(_CONTEXT, decoder.capacity // 2)
    widths = [width for width in widths if context + decoder.padding.width(width) <= decoder.capacity]
    long = min(_LONG, decoder.capacity - decoder.padding.width(max(_LONG_WIDTHS)))
    has_room = decoder.signature.shares_buffer and long >= 4 * context
    again = [width for width in _LONG_WIDTHS if has_room and width in widths]
    passes = [*((context, width) for width in widths), *((long, width) for width in again)]
    laps = _timed_laps(decoder, passes, clock)
    level = laps.sum(axis=1)
    seconds = np.median(laps / level[:, None], axis=0) * level.min()
    short = np.maximum.accumulate(seconds[: len(widths)])
    more = [
        max(0.0, seconds[len(widths) + at] - short[widths.index(width)]) for at, width in enumerate(again)
    ]
    slopes = np.interp(widths, again, more) / (long - context) if again else ()
    return Curve(tuple(widths), tuple(short.tolist()), tuple(float(slope) for slope in slopes))


def _timed_laps(
    decoder: Decoder, passes: Sequence[tuple[int, int]], clock: Callable[[], float]
) -> NDArray[np.float64]:
    """Seconds [laps, passes] of passes, each (tokens before it, width); rows that were never computed cost the same."""
    seconds = np.zeros((_LAPS, len(passes)))
    first = passes[0][0]
    decoder.rollback(0)
    decoder.cache.reserve(max(context + decoder.padding.width(width) for context, width in passes))
    decoder.forward(arbitrary_tokens(decoder, first), keep=1)
    for lap in range(_LAPS):
        for column, (context, width) in enumerate(passes):
            decoder.cache.length = context
            start = clock()
            decoder.forward(arbitrary_tokens(decoder, width))
            seconds[lap, column] = clock() - start
    decoder.rollback(0)
    return seconds


def arbitrary_tokens(decoder: Decoder, count: int) -> list[int]:
    """Token ids to run passes over; the same at every call."""
    return (np.arange(1, count + 1) * 7919 % min(decoder.vocab_size, 32_000)).tolist()
