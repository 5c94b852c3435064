"""Weight formats: how each stores a linear layer, y = x·Wᵀ with W [out, in] float32, as ONNX nodes."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi import _pybind_state as native

from specdec_onnx.export.graph.builder import MICROSOFT, Graph
from specdec_onnx.export.workers import in_order, run_all
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.kernels import kernels

Matrix = NDArray[np.float32]

TOLERATED_ERROR = 0.01
"""Squared error of a w8a8 layer, as a share of its output's squares, above which its activations stay in float."""

TOLERATED_LOSS = 0.02
"""Bound on the nats of KL divergence that 4 bits may cost a head whose layers are copied; the cost is a third to a half."""

_LEVELS = 127
_ZERO_POINT = 128
_LOW, _HIGH = -8, 7
_STRETCHES = (1.0, 0.8, 0.86, 0.92, 1.06, 1.12)
"""Scales tried, as shares of the one that makes the largest weight of a block exact; that one wins a tie."""

_MOST_ZERO = 1 << 15
"""Zero points end here, within the range of halves: a block so far from zero, for its step, is a constant."""

_ATTENTION, _FEED_FORWARD = ("qkv", "output"), ("gate_up", "down")
"""The kinds of layers; whatever else is multiplied is the head."""

_MOST_UNITS = 127
_MOST_CHANGE = 0.2
"""By what part of themselves a row's scales may change to fit a byte, root mean square. Usual rows change by 0.004; a
few, in which one block dwarfs the others, by more than the 0.1 or so that rounding to 4 bits changes weights."""

_STRIPE_BYTES = 8 << 20
"""What a thread takes at a time, as float32."""

_CACHED_BYTES = 256 << 10
"""Of that, what is worked on at a time: it stays in a core's cache from one pass over it to the next."""

_SIDE = 64


@dataclass(frozen=True)
class Blocks:
    """A matrix in blocks along its rows: int8 levels [rows, blocks, block] of 4 or 8 bits, scales [rows, blocks].

    `zeros` [rows, blocks] are the places of zero, between levels too, counted from the lowest level as in MatMulNBits;
    without them, level 0 is zero.
    """

    levels: NDArray[np.int8]
    scales: Matrix
    bits: int = 4
    zeros: Matrix | None = None

    @classmethod
    def with_offsets(cls, steps: NDArray[np.uint8], scales: Matrix, offsets: Matrix, bits: int) -> "Blocks":
        """The weights step · scale + offset, with steps from 0 on."""
        constant = np.abs(offsets) >= _MOST_ZERO * np.abs(scales)
        scales = np.where(constant, np.where(offsets == 0, 1, -offsets), scales).astype(np.float32)
        steps = np.where(constant[..., None], 0, steps).astype(np.uint8) - np.uint8(1 << (bits - 1))
        return cls(steps.view(np.int8), scales, bits, -offsets / scales)

    @property
    def grid(self) -> tuple[int, int]:
        """Bits a weight and weights a block."""
        return self.bits, self.levels.shape[2]

    def rows(self, chosen: slice | NDArray[np.int64]) -> "Blocks":
        """Some of the rows."""
        zeros = None if self.zeros is None else self.zeros[chosen]
        return replace(self, levels=self.levels[chosen], scales=self.scales[chosen], zeros=zeros)

    def times(self, factor: float) -> "Blocks":
        """All weights multiplied; the levels stay."""
        return self if factor == 1 else replace(self, scales=self.scales * np.float32(factor))

    def matrix(self, inner: int) -> Matrix:
        """The weights, float32 [rows, inner]."""
        lowest = np.float32(-1 << (self.bits - 1))
        zeros = np.float32(0) if self.zeros is None else self.zeros[..., None] + lowest
        values = (self.levels - zeros) * self.scales[..., None]
        return values.reshape(len(values), -1)[:, :inner]

    def around_zero(self) -> "Blocks":
        """8-bit blocks without zero points, their weights rounded to new levels."""
        values = self.matrix(self.levels.size // len(self.levels)).reshape(self.levels.shape)
        scales = column_scales(values.reshape(-1, self.levels.shape[2])).reshape(self.scales.shape)
        return Blocks(np.rint(values / scales[..., None]).astype(np.int8), scales, bits=8)

    def packed(self) -> NDArray[np.uint8]:
        """Bytes [rows, blocks, bytes] as MatMulNBits reads them; of 4 bits, the first level in the lower half."""
        unsigned = self.levels.view(np.uint8) + np.uint8(1 << (self.bits - 1))
        if self.bits == 8:
            return unsigned
        return unsigned[..., 0::2] | np.left_shift(unsigned[..., 1::2], np.uint8(4))


def stack(parts: Sequence[Blocks]) -> list[Blocks]:
    """Matrices below each other; neighbours of one kind become one."""
    return [_join(list(alike)) for _, alike in groupby(parts, lambda part: (part.grid, part.zeros is None))]


def _join(parts: Sequence[Blocks]) -> Blocks:
    if len(parts) == 1:
        return parts[0]
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return Blocks(
        np.concatenate([part.levels for part in parts]),
        np.concatenate([part.scales for part in parts]),
        parts[0].bits,
        np.concatenate(zeros) if zeros else None,
    )


class Format(Protocol):
    """How a matrix is stored and multiplied. A new format is a class with this protocol and a line in `parse_format`."""

    @property
    def name(self) -> str:
        """As people write it: `w8a8`, `int4-128`."""

    @property
    def embedding_bits(self) -> int:
        """Bits of each number in the embedding table: 32, 16, or 8 if int8 rows are precise enough."""

    def linear(self, graph: Graph, x: str, weight: Matrix, name: str) -> str:
        """Add the nodes of x [1, S, in] · weightᵀ; returns the name of the result [1, S, out]."""


@runtime_checkable
class Calibrated(Format, Protocol):
    """A format whose loss depends on a layer's activations."""

    def calibrate(self, names: Collection[str], importance: Matrix, error: float, power: float) -> bool:
        """Prepare for the layers `names`, before they are written.

        Args:
            names: The names under which `linear` may be called.
            importance: Mean square of each input channel [in].
            error: Squared error of the output at this format, as a share of its squares.
            power: Mean square of the output.

        Returns:
            Whether the layer's activations stay in float, because it would lose too much.
        """

    def product(self, x: Matrix, weight: Matrix, importance: Matrix) -> Matrix:
        """x [rows, in] · weightᵀ with this format's loss, computed here."""


@dataclass(frozen=True)
class Float32:
    """Weights as they are."""

    name: str = "fp32"
    embedding_bits: int = 32

    def linear(self, graph: Graph, x: str, weight: Matrix, name: str) -> str:
        """One MatMul."""
        stored = graph.weight(f"{name}.weight", np.float32, weight.T.shape, _transposed(weight))
        return graph.node("MatMul", [x, stored], name)


@dataclass(frozen=True)
class RowwiseInt8:
    """w8a8: weights int8 per output column, activations int8 per row, exact int32 sums.

    Each row has its own scale, so a drafted token cannot change the logits of an earlier one.

    Processors without VNNI add pairs of unsigned-by-signed products in 16 bits and saturate. For them the weights
    are stored unsigned, the same grid shifted by 128, which multiplies exactly and as fast; elsewhere signed ones
    are faster. If a signed model is loaded on such a processor, the runtime converts it by ONNX Runtime's precise
    mode (`session.x64quantprecision`), which needs a named zero point for every weight.

    Layers in `float_activations` have int8 weights in blocks: their inputs do not fit 127 steps.
    """

    name: str = "w8a8"
    embedding_bits: int = 8
    signed: bool = True
    float_activations: set[str] = field(default_factory=set, compare=False)

    def calibrate(self, names: Collection[str], importance: Matrix, error: float, power: float) -> bool:
        """Whether the error is so large that activations stay in float."""
        too_large = error > TOLERATED_ERROR
        self.float_activations.update(names if too_large else ())
        return too_large

    def product(self, x: Matrix, weight: Matrix, importance: Matrix) -> Matrix:
        """What the nodes compute, in float arithmetic."""
        scales, peaks = column_scales(weight), np.abs(x).max(axis=1, keepdims=True)
        levels = np.rint(x / np.where(peaks > 0, peaks, 1) * _LEVELS)
        return levels @ np.rint(weight / scales[:, None]).T * (scales / np.float32(_LEVELS)) * peaks

    def linear(self, graph: Graph, x: str, weight: Matrix, name: str) -> str:
        """Quantize each row of x, multiply in integers, scale back; the column scales include 1/127."""
        if name in self.float_activations:
            return WeightOnly(8, 32).linear(graph, x, weight, name)
        rows, peak = self._quantize_rows(graph, x, name)
        scales = column_scales(weight)
        kind, zero = (np.int8, 0) if self.signed else (np.uint8, _ZERO_POINT)
        levels = _quantized_columns(weight, scales, zero)
        operands = [
            rows,
            graph.weight(f"{name}.weight", kind, weight.T.shape, (part.view(kind) for part in levels)),
            graph.constant("one", np.float32(1)),
            graph.constant(f"{name}.scale", scales / np.float32(_LEVELS)),
            graph.constant("zero_point", np.uint8(_ZERO_POINT)),
            graph.constant(f"{name}.zero_point", kind(zero)),
        ]
        product = graph.node("MatMulIntegerToFloat", operands, f"{name}.product", domain=MICROSOFT)
        return graph.node("Mul", [product, peak], name)

    def _quantize_rows(self, graph: Graph, x: str, name: str) -> tuple[str, str]:
        """Each row over its own largest magnitude, rounded to 127 steps: uint8 rows and float [1, S, 1] peaks."""
        # A row of zeros divides zero by zero; whichever byte that becomes, its peak of zero cancels the product.
        magnitude = graph.node("Abs", [x], f"{name}.magnitude")
        last = graph.constant("last_axis", np.array([-1]))
        peak = graph.node("ReduceMax", [magnitude, last], f"{name}.peak", keepdims=1)
        unit = graph.node("Div", [x, peak], f"{name}.unit")
        step = graph.constant("step", np.float32(1 / _LEVELS))
        zero = graph.constant("zero_point", np.uint8(_ZERO_POINT))
        return graph.node("QuantizeLinear", [unit, step, zero], f"{name}.rows"), peak


@dataclass(frozen=True)
class WeightOnly:
    """Weights in blocks along the input, each block with its own scale (MatMulNBits)."""

    bits: int
    block: int
    embedding_bits: int = 16
    shortens_copies: ClassVar[bool] = False
    """Whether the scales and zero points of 4-bit blocks that the source stores are rounded to bytes."""

    @property
    def name(self) -> str:
        """`int4-32`, `int8-32`."""
        return f"int{self.bits}-{self.block}"

    @property
    def grid(self) -> tuple[int, int]:
        """Bits a weight and weights a block."""
        return self.bits, self.block

    def linear(self, graph: Graph, x: str, weight: Matrix, name: str) -> str:
        """One MatMulNBits over newly quantized blocks."""
        scales = np.empty((len(weight), -(-weight.shape[1] // self.block)), np.float32)
        packed = in_order(lambda rows: self.pack(weight[rows], scales[rows], name), _stripes(*weight.shape))
        return _multiply(
            graph, x, packed, (scales, None), (*self.grid, weight.shape[1]), name, short=self.bits == 4
        )

    def fitted(self, stored: Blocks, kind: str) -> Blocks | None:
        """Blocks that a source stores, as this format keeps those of a layer; None if they are rounded anew."""
        return stored if stored.grid == self.grid and stored.zeros is None else None

    def copy_blocks(self, graph: Graph, x: str, stored: Sequence[Blocks], inner: int, name: str) -> str:
        """One MatMulNBits for each of the parts that the source stores, below each other: no weight is rounded."""
        if len(stored) == 1:
            return self._copy(graph, x, stored[0], inner, name)
        parts = [self._copy(graph, x, part, inner, f"{name}.{index}") for index, part in enumerate(stored)]
        return graph.node("Concat", parts, name, axis=-1)

    def _copy(self, graph: Graph, x: str, stored: Blocks, inner: int, name: str) -> str:
        packed = (stored.rows(rows).packed() for rows in _stripes(len(stored.levels), inner))
        numbers, short = (stored.scales, stored.zeros), self.shortens_copies and stored.bits == 4
        return _multiply(graph, x, packed, numbers, (*stored.grid, inner), name, short=short)

    def pack(self, weight: Matrix, scales: Matrix, name: str) -> NDArray[np.uint8]:
        """Packed bytes [rows, blocks, bytes] of some rows of layer `name`; fills `scales` [rows, blocks]."""
        (count, inner), blocks = weight.shape, scales.shape[1]
        packed = np.zeros((count, blocks, self.block), np.uint8)
        part = np.zeros(count * blocks, np.float32)
        unused = np.zeros(count * blocks, np.uint8)
        stripe = np.ascontiguousarray(weight.T)
        native.quantize_matmul_8bits(packed, stripe, part, unused, self.block, count, inner, True)
        scales[:] = part.reshape(count, blocks)
        return packed


@dataclass(frozen=True)
class Int4(WeightOnly):
    """int4: 16 levels around zero, each block's scale searched for the least error of the layer's output."""

    embedding_bits: int = 8
    importance: dict[str, Matrix] = field(default_factory=dict, compare=False)

    def calibrate(self, names: Collection[str], importance: Matrix, error: float, power: float) -> bool:
        """Remember how much each channel matters; activations are rounded finely enough in any case."""
        self.importance.update(dict.fromkeys(names, importance))
        return False

    def pack(self, weight: Matrix, scales: Matrix, name: str) -> NDArray[np.uint8]:
        """Packed bytes of some rows; fills `scales`."""
        blocks = quantize_blocks(weight, self.block, self.importance.get(name))
        scales[:] = blocks.scales
        return blocks.packed()

    def product(self, x: Matrix, weight: Matrix, importance: Matrix) -> Matrix:
        """x times the rounded weights; rounding x itself loses far less."""
        return x @ quantize_blocks(weight, self.block, importance).matrix(weight.shape[1]).T


@dataclass(frozen=True)
class AsStored(Int4):
    """gguf: the source's own blocks, whatever their size; int4 for what is not stored in blocks.

    Zero points between levels are copied only if `offsets`: ONNX Runtime's own kernel takes 15 to 20 times as long for
    them as our kernels do, so elsewhere such matrices are rounded anew. With 8 bits it does not take them at all, and
    with 8 bits little is lost without them.
    """

    offsets: bool = True

    @property
    def name(self) -> str:
        """`gguf`."""
        return "gguf"

    @property
    def otherwise(self) -> str:
        """The name of what is not copied."""
        return super().name

    def fitted(self, stored: Blocks, kind: str) -> Blocks | None:
        """Blocks that a source stores, as this format keeps those of a layer; None if they are rounded anew."""
        if stored.zeros is None:
            return stored
        if stored.bits == 8:
            return stored.around_zero()
        return stored if self.offsets else None


@dataclass(frozen=True)
class Mixed(AsStored):
    """mixed: 4 bits for the feed-forward layers, 8 for attention; a GGUF file's own 4-bit blocks, with shorter numbers.

    Attention has few weights and loses most by rounding. The head has 4 bits only where the layers lose nearly nothing,
    because their blocks are copied, and where calibration predicts a small loss for the head too.
    """

    copied: set[str] = field(default_factory=set, compare=False)
    losses: dict[str, float] = field(default_factory=dict, compare=False)
    shortens_copies: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """`mixed`."""
        return "mixed"

    @property
    def otherwise(self) -> str:
        """The name where nothing is copied: the same."""
        return self.name

    def fitted(self, stored: Blocks, kind: str) -> Blocks | None:
        """The source's blocks of 4 bits, and in attention those of 8; None for others."""
        kept = super().fitted(stored, kind) if stored.bits == 4 or kind in _ATTENTION else None
        if kept is not None and kept.bits == 4:
            self.copied.add(kind)
        return kept

    def linear(self, graph: Graph, x: str, weight: Matrix, name: str) -> str:
        """One MatMulNBits with 4 or 8 bits, by what the layer is."""
        kind = name.removesuffix(".unbiased").rpartition(".")[2]
        is_cheap = bool(self.copied) and self.losses.get(name, np.inf) <= TOLERATED_LOSS
        if kind in _FEED_FORWARD or (kind not in _ATTENTION and is_cheap):
            return super().linear(graph, x, weight, name)
        return WeightOnly(8, self.block).linear(graph, x, weight, name)

    def calibrate(self, names: Collection[str], importance: Matrix, error: float, power: float) -> bool:
        """Remember what matters, and what 4 bits may cost: at most v/2 nats for logits whose error has the variance v."""
        self.losses.update(dict.fromkeys(names, error * power / 2))
        return super().calibrate(names, importance, error, power)


_STORED = {"gguf": AsStored, "mixed": Mixed}


def column_scales(weight: Matrix) -> Matrix:
    """Step of each output column's int8 grid: float32 [out], 1 for a column of zeros."""
    peaks = np.maximum(weight.max(axis=1), -weight.min(axis=1))
    return np.where(peaks > 0, peaks / np.float32(_LEVELS), np.float32(1)).astype(np.float32)


def parse_format(text: str, block: int = 32) -> Format:
    """fp32, w8a8, mixed, gguf, int8[-BLOCK] or int4[-BLOCK], whose default is `block`; SpecdecError for anything else."""
    if text == "fp32":
        return Float32()
    if text == "w8a8":
        return RowwiseInt8(signed=not signed_weights_saturate())
    if text in _STORED:
        return _STORED[text](4, 32, offsets=bool(kernels().name))
    match = re.fullmatch(r"int([48])(?:-(16|32|64|128|256))?", text)
    if match is None:
        raise SpecdecError(
            f"unknown format {text!r}",
            fix="use mixed, gguf, w8a8, int4, int8 or fp32; int4-64 sets the block size (16 to 256)",
        )
    if match[1] == "4":
        return Int4(4, int(match[2] or block))
    return WeightOnly(8, int(match[2] or 32))


def quantize_blocks(weight: Matrix, block: int, importance: Matrix | None = None) -> Blocks:
    """Blocks of `weight` [rows, inner] with the least squared error, each input channel weighted by `importance`.

    For each of several scales the weights are rounded, then the scale is fitted to the levels by least squares, and
    the scale that explains most of the block is kept: the search behind llama.cpp's k-quants (make_qx_quants).
    """
    channels = np.ones((1, weight.shape[1]), np.float32) if importance is None else importance[None]
    importances = _split(channels, block)
    importances = importances + np.float32(1e-6) * importances.max()
    levels = np.empty((len(weight), *importances.shape[1:]), np.int8)
    scales = np.empty(levels.shape[:2], np.float32)

    def fill(rows: slice) -> None:
        levels[rows], scales[rows] = _best_levels(_split(weight[rows], block), importances)

    run_all(fill, _stripes(len(weight), weight.shape[1], _CACHED_BYTES))
    return Blocks(levels, scales)


def _best_levels(parts: Matrix, importances: Matrix) -> tuple[Matrix, Matrix]:
    """Levels [rows, blocks, block] as floats, and scales [rows, blocks]; `importances` are [1, blocks, block]."""
    extreme = np.take_along_axis(parts, np.abs(parts).argmax(axis=2)[..., None], axis=2) / np.float32(_LOW)
    extreme[extreme == 0] = 1
    weighted, rounded = parts * importances, np.empty_like(parts)
    scales, most = np.ones(parts.shape[:2], np.float32), np.full(parts.shape[:2], -1, np.float32)
    steps = np.full_like(extreme, np.inf)
    for stretch in _STRETCHES:
        step = extreme * np.float32(stretch)
        _round(parts, step, rounded)
        along = np.einsum("rbk,rbk->rb", weighted, rounded)
        length = np.maximum(np.einsum("rbk,rbk,obk->rb", rounded, rounded, importances), np.float32(1e-30))
        explained = along * along / length
        better = explained > most
        np.copyto(steps[..., 0], step[..., 0], where=better)
        np.copyto(scales, along / length, where=better)
        np.copyto(most, explained, where=better)
    scales[scales == 0] = 1
    return _round(parts, steps, rounded), scales


def _round(parts: Matrix, step: Matrix, out: Matrix) -> Matrix:
    """Put the levels of `parts` into `out`."""
    np.divide(parts, step, out=out)
    np.rint(out, out=out)
    return np.clip(out, _LOW, _HIGH, out=out)


def _multiply(
    graph: Graph,
    x: str,
    packed: Iterator[NDArray[np.uint8]],
    numbers: tuple[Matrix, Matrix | None],
    sizes: tuple[int, int, int],
    name: str,
    *,
    short: bool,
) -> str:
    """The node, which computes in int8 (accuracy level 4).

    `numbers` are scales, complete after `packed` is read, and zero points, both to be stored as bytes if `short`;
    `sizes` are bits, block and length of a row.
    """
    (bits, block, inner), (out, blocks) = sizes, numbers[0].shape
    weight = graph.weight(f"{name}.weight", np.uint8, (out, blocks, block * bits // 8), packed)
    scales, zeros = (as_bytes if short else as_halves)(*numbers)
    operands = [x, weight, graph.constant(f"{name}.scale", scales)]
    if zeros is not None:
        operands.append(graph.constant(f"{name}.zero", zeros))
    attributes = {"K": inner, "N": out, "bits": bits, "block_size": block, "accuracy_level": 4}
    return graph.node("MatMulNBits", operands, name, domain=MICROSOFT, **attributes)


def as_halves(scales: Matrix, zeros: Matrix | None = None) -> tuple[Matrix, Matrix | None]:
    """Scales and zero points [rows, blocks] rounded to halves, which our kernels read in half the bytes.

    They stay as they are where more would be lost than 1/2048 of the largest scale in a row.
    """
    with np.errstate(over="ignore"):
        rounded = scales.astype(np.float16).astype(np.float32)
    largest = np.abs(scales).max(axis=1, keepdims=True)
    if (np.abs(rounded - scales) > largest / 2048).any():
        return scales, zeros
    if zeros is None:
        return rounded, None
    rounded[rounded == 0] = np.finfo(np.float16).smallest_subnormal
    return rounded, (zeros * scales / rounded).astype(np.float16).astype(np.float32)


def as_bytes(scales: Matrix, zeros: Matrix | None = None) -> tuple[Matrix, Matrix | None]:
    """Scales and zero points [rows, blocks] rounded to numbers that our kernels read in one byte each.

    A scale becomes a whole number of units of its row, a zero point a whole number of sixteenths. What that changes is
    lost in the rounding of weights to 4 bits; where it would not be, the numbers become halves.
    """
    unit = _with_short_fraction(np.abs(scales).max(axis=1, keepdims=True) / np.float32(_MOST_UNITS))
    rounded = np.rint(scales / np.where(unit == 0, 1, unit)) * unit
    change = (rounded - scales) / np.where(scales == 0, 1, scales)
    if (np.sqrt(np.mean(change**2, axis=1)) > _MOST_CHANGE).any():
        return as_halves(scales, zeros)
    if zeros is None:
        return rounded, None
    moved = np.where(rounded == 0, 0, zeros * scales / np.where(rounded == 0, 1, rounded))
    parts = np.clip(np.rint(moved * 16), 0, 255) / np.float32(16)
    return (rounded, parts) if np.abs(parts - moved).max() <= 1 / 8 else as_halves(scales, zeros)


def _with_short_fraction(numbers: Matrix) -> Matrix:
    """The nearest floats of 16 significant bits: 127 times one of them is exact."""
    return ((numbers.astype(np.float32).view(np.int32) + 128) & ~255).view(np.float32)


def _split(rows: Matrix, block: int) -> Matrix:
    """[rows, inner] as [rows, blocks, block], the last block filled with zeros."""
    missing = -rows.shape[1] % block
    padded = np.pad(rows, ((0, 0), (0, missing))) if missing else rows
    return padded.reshape(len(rows), -1, block)


def _quantized_columns(weight: Matrix, scales: Matrix, zero: int) -> Iterator[NDArray[np.uint8]]:
    """Rows of the transpose as bytes, `zero` being the level of zero."""

    def quantized(columns: slice) -> NDArray[np.uint8]:
        levels = np.empty((columns.stop - columns.start, len(weight)), np.uint8)
        for rows in _stripes(len(weight), len(levels), _CACHED_BYTES):
            part = np.rint(weight[rows, columns] / scales[rows, None])
            np.clip(part, -_LEVELS, _LEVELS, out=part)
            levels[:, rows] = (part.astype(np.int16) + np.int16(zero)).astype(np.uint8).T
        return levels

    return in_order(quantized, _stripes(weight.shape[1], weight.shape[0]))


def _transposed(weight: Matrix) -> Iterator[Matrix]:
    """The transpose, some of its rows at a time."""
    for columns in _stripes(weight.shape[1], weight.shape[0]):
        yield np.ascontiguousarray(weight[:, columns].T)


def _stripes(length: int, width: int, size: int = 0) -> Iterator[slice]:
    """Cuts `length` rows of `width` floats into pieces of `size` bytes; 0: what a thread takes at a time."""
    step = max(1, (size or _STRIPE_BYTES) // (4 * width))
    for first in range(0, length, step):
        yield slice(first, min(first + step, length))


@lru_cache(maxsize=1)
def signed_weights_saturate() -> bool:
    """Whether products of uint8 activations and int8 weights saturate at 16 bits here, as on x86 without VNNI."""
    graph = Graph()
    operands = [
        graph.input("rows", np.uint8, [2, _SIDE]),
        graph.constant("weight", np.full((_SIDE, _SIDE), _LEVELS, np.int8)),
        graph.constant("one", np.float32(1)),
        graph.constant("scale", np.ones(_SIDE, np.float32)),
        graph.constant("zero_point", np.uint8(_ZERO_POINT)),
    ]
    output = graph.output("product", np.float32, [2, _SIDE])
    graph.node("MatMulIntegerToFloat", operands, output, domain=MICROSOFT)
    session = ort.InferenceSession(graph.serialize(), providers=["CPUExecutionProvider"])
    product = session.run(None, {"rows": np.full((2, _SIDE), 255, np.uint8)})[0]
    return bool((product != _LEVELS * _LEVELS * _SIDE).any())
