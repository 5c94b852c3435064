"""The two ends of a model that are as wide as the vocabulary: the embedding table and the trimmed head."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from specdec_onnx.export.graph.builder import Graph
from specdec_onnx.export.quantization.linear import Format, Matrix, column_scales
from specdec_onnx.export.workers import in_order
from specdec_onnx.models.errors import SpecdecError

PADDING = -65504.0
"""Logit of an id that a trimmed head does not score: the lowest half-precision number."""

_CHUNK_ROWS = 4096
_TOLERATED_LOSS = 1e-3
"""Largest rounding loss at which rows are stored as int8; see `rounding_loss`."""

_ZERO_POINT = 128


def add_embedding(graph: Graph, table: Matrix, format: Format) -> str:
    """Nodes that look `input_ids` up in `table` [vocabulary, hidden]; returns the rows' name, float [1, S, hidden].

    A tied head is not reused: it is stored column by column, so gathering a row would cost 3 % of a narrow pass, and
    its rounding was chosen for another use.
    """
    if format.embedding_bits == 8 and rounding_loss(table) <= _TOLERATED_LOSS:
        return _int8_rows(graph, table)
    if format.embedding_bits < 32 and max(table.max(), -table.min()) <= np.finfo(np.float16).max:
        return _half(graph, table)
    return _whole(graph, table)


def rounding_loss(table: Matrix) -> float:
    """Squared error of rounding each row to its own 255 levels, as a share of the squares; the mean over channels."""
    lost, total = np.zeros((2, table.shape[1]))
    for squares in in_order(_lost_and_total, _chunks(table)):
        lost += squares[0]
        total += squares[1]
    return float(np.mean(lost / np.maximum(total, 1e-30)))


def _lost_and_total(rows: Matrix) -> tuple[Matrix, Matrix]:
    """Squares that rounding loses, and squares, of each channel."""
    steps = column_scales(rows)[:, None]
    rounded = rows / steps
    np.rint(rounded, out=rounded)
    rounded *= steps
    rounded -= rows
    np.square(rounded, out=rounded)
    return rounded.sum(axis=0), np.square(rows, out=np.empty_like(rows)).sum(axis=0)


def _whole(graph: Graph, table: Matrix) -> str:
    stored = graph.weight("embedding.weight", np.float32, table.shape, _chunks(table))
    return graph.node("Gather", [stored, "input_ids"], "embedding")


def _half(graph: Graph, table: Matrix) -> str:
    stored = graph.weight("embedding.weight", np.float16, table.shape, _chunks(table))
    halves = graph.node("Gather", [stored, "input_ids"], "embedding.half")
    return graph.node("Cast", [halves], "embedding", to=onnx.TensorProto.FLOAT)


def _int8_rows(graph: Graph, table: Matrix) -> str:
    scales = graph.constant("embedding.scale", column_scales(table)[:, None])
    stored = graph.weight("embedding.weight", np.uint8, table.shape, _levels(table))
    rows = graph.node("Gather", [stored, "input_ids"], "embedding.rows")
    steps = graph.node("Gather", [scales, "input_ids"], "embedding.steps")
    one, zero = graph.constant("one", np.float32(1)), graph.constant("zero_point", np.uint8(_ZERO_POINT))
    levels = graph.node("DequantizeLinear", [rows, one, zero], "embedding.levels")
    return graph.node("Mul", [levels, steps], "embedding")


def _levels(table: Matrix) -> Iterator[NDArray[np.uint8]]:
    return in_order(_row_levels, _chunks(table))


def _row_levels(rows: Matrix) -> NDArray[np.uint8]:
    levels = rows / column_scales(rows)[:, None]
    np.rint(levels, out=levels)
    levels += _ZERO_POINT
    return levels.astype(np.uint8)


def _chunks(table: Matrix) -> Iterator[Matrix]:
    for first in range(0, len(table), _CHUNK_ROWS):
        yield table[first : first + _CHUNK_ROWS]


@dataclass(frozen=True)
class Trimming:
    """The ids a trimmed head keeps, as ascending [first, end) ranges."""

    ranges: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many ids are kept."""
        return sum(end - first for first, end in self.ranges)

    def ids(self) -> NDArray[np.int64]:
        """The kept ids in column order: int64 [size]."""
        return np.concatenate([np.arange(first, end) for first, end in self.ranges])


def trim(count: int, special: Iterable[int], vocabulary: int) -> Trimming | None:
    """Keep the first `count` ids and the special ones; None if that is the whole vocabulary.

    Byte-pair vocabularies number tokens in the order in which they were merged, so low ids are the frequent ones.
    """
    if count < 1:
        raise SpecdecError(f"cannot trim the head to {count} tokens", fix="give a positive number, or 'none'")
    if count >= vocabulary:
        return None
    extra = [token for token in special if 0 <= token < vocabulary]
    kept = np.union1d(np.arange(count), np.array(extra, np.int64))
    ranges = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)
    return Trimming(tuple((int(ids[0]), int(ids[-1]) + 1) for ids in ranges))


def pad_logits(graph: Graph, trimming: Trimming, vocabulary: int) -> None:
    """From `trimmed_logits` [1, S, kept] to `logits` [1, S, vocabulary], PADDING for ids that are not kept."""
    lengths = graph.constant("range_lengths", np.array([end - first for first, end in trimming.ranges]))
    parts = [f"range.{first}" for first, _ in trimming.ranges]
    graph.nodes("Split", ["trimmed_logits", lengths], parts, axis=-1)
    next_firsts = [first for first, _ in trimming.ranges[1:]] + [vocabulary]
    filler = graph.constant("padding", np.float32(PADDING))
    padded = []
    for part, (_, end), next_first in zip(parts, trimming.ranges, next_firsts, strict=True):
        pads = graph.constant(f"{part}.pads", np.array([0, 0, 0, 0, 0, next_first - end]))
        padded.append(graph.node("Pad", [part, pads, filler], f"{part}.padded"))
    graph.node("Concat", padded, "logits", axis=-1)
