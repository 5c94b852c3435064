"""Four or eight bits a weight, in blocks along the input that share a scale."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

LOW, HIGH = -8, 7
_STRETCHES = (1.0, 0.8, 0.86, 0.92, 1.06, 1.12)
"""Scales tried, as shares of the one that makes the largest weight of a block exact; that one wins a tie."""

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Blocks:
    """Levels int8 [rows, blocks, block] around zero, of 4 or 8 bits, and their scales [rows, blocks]."""

    levels: NDArray[np.int8]
    scales: Matrix
    bits: int = 4

    @property
    def grid(self) -> tuple[int, int]:
        """Bits a weight and weights a block."""
        return self.bits, self.levels.shape[2]

    def rows(self, chosen: "slice | NDArray[np.int64]") -> "Blocks":
        """Some of the rows."""
        return replace(self, levels=self.levels[chosen], scales=self.scales[chosen])

    def times(self, factor: float) -> "Blocks":
        """All weights multiplied; the levels stay."""
        return self if factor == 1 else replace(self, scales=self.scales * np.float32(factor))

    def matrix(self, inner: int) -> Matrix:
        """The weights they stand for, float32 [rows, inner]."""
        values = self.levels * self.scales[..., None]
        return values.reshape(len(values), -1)[:, :inner]

    def packed(self) -> NDArray[np.uint8]:
        """Bytes [rows, blocks, bytes] as MatMulNBits reads them; of 4 bits, the first level in the lower half."""
        unsigned = self.levels.view(np.uint8) + np.uint8(1 << (self.bits - 1))
        if self.bits == 8:
            return unsigned
        return unsigned[..., 0::2] | np.left_shift(unsigned[..., 1::2], np.uint8(4))


def stack(parts: Sequence[Blocks]) -> Blocks:
    """Blocks of one grid, below each other."""
    if len(parts) == 1:
        return parts[0]
    levels, scales = ([getattr(part, name) for part in parts] for name in ("levels", "scales"))
    return Blocks(np.concatenate(levels), np.concatenate(scales), parts[0].bits)


def quantize_blocks(weight: Matrix, block: int, importance: Matrix | None = None) -> Blocks:
    """Blocks of `weight` [rows, inner] with the least squared error, each input channel weighted by `importance`.

    For each of several scales the weights are rounded, then the scale is fitted to the levels by least squares, and
    the scale that explains most of the block is kept: the search behind llama.cpp's k-quants (make_qx_quants).
    """
    parts = _split(weight, block)
    heed = _split(
        np.ones((1, weight.shape[1]), np.float32) if importance is None else importance[None], block
    )
    heed = heed + np.float32(1e-6) * heed.max()
    extreme = np.take_along_axis(parts, np.abs(parts).argmax(axis=2)[..., None], axis=2) / np.float32(LOW)
    extreme[extreme == 0] = 1
    weighted = parts * heed
    levels, scales, most = (
        np.zeros_like(parts),
        np.ones(parts.shape[:2], np.float32),
        np.full(parts.shape[:2], -1.0),
    )
    for stretch in _STRETCHES:
        rounded = np.clip(np.rint(parts / (extreme * np.float32(stretch))), LOW, HIGH)
        along = np.einsum("rbk,rbk->rb", weighted, rounded)
        length = np.maximum(np.einsum("rbk,rbk,obk->rb", rounded, rounded, heed), np.float32(1e-30))
        better = along * along / length > most
        levels[better] = rounded[better]
        scales[better] = (along / length)[better]
        most[better] = (along * along / length)[better]
    scales[scales == 0] = 1
    return Blocks(levels.astype(np.int8), scales)


def _split(rows: Matrix, block: int) -> Matrix:
    """[rows, inner] as [rows, blocks, block], the last block filled with zeros."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % block)))
    return padded.reshape(len(rows), -1, block)
