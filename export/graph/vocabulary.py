"""The two ends of a model that are as wide as the vocabulary: the embedding table and the trimmed head."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from specdec_onnx.export.graph.builder import Graph
from specdec_onnx.export.quantization.linear import Format, Int4, Matrix, RowwiseInt8, column_scales
from specdec_onnx.models.errors import SpecdecError

_CHUNK_ROWS = 4096
_TOLERATED_LOSS = 1e-3
"""Rounding error allowed in bytes, squared, as a share of the table's squares, averaged over its channels."""

_ZERO_POINT = 128


def add_embedding(graph: Graph, table: Matrix, format: Format) -> str:
    """Nodes that look `input_ids` up in `table` [vocabulary, hidden]; returns the rows' name, float [1, S, hidden].

    The head is never read in its stead where a checkpoint ties the two: it lies column by column, so each row would
    be gathered from `hidden` places (3 % of a narrow pass), rounded on a grid that smoothing chose for another use.
    """
    if format.name == "fp32":
        return _whole(graph, table)
    if isinstance(format, RowwiseInt8 | Int4) and bytes_loss(table) <= _TOLERATED_LOSS:
        return _bytes(graph, table)
    return _half(graph, table) if np.abs(table).max() <= np.finfo(np.float16).max else _whole(graph, table)


def bytes_loss(table: Matrix) -> float:
    """What rounding each row to its own 255 levels loses, as _TOLERATED_LOSS counts it; channels weigh the same."""
    lost, all = np.zeros((2, table.shape[1]))
    for rows in _chunks(table):
        steps = column_scales(rows)[:, None]
        lost += np.square(np.rint(rows / steps) * steps - rows).sum(axis=0)
        all += np.square(rows).sum(axis=0)
    return float(np.mean(lost / np.maximum(all, 1e-30)))


def _whole(graph: Graph, table: Matrix) -> str:
    stored = graph.weight("embedding.weight", np.float32, table.shape, _chunks(table))
    return graph.node("Gather", [stored, "input_ids"], "embedding")


def _half(graph: Graph, table: Matrix) -> str:
    stored = graph.weight("embedding.weight", np.float16, table.shape, _chunks(table))
    halves = graph.node("Gather", [stored, "input_ids"], "embedding.half")
    return graph.node("Cast", [halves], "embedding", to=onnx.TensorProto.FLOAT)


def _bytes(graph: Graph, table: Matrix) -> str:
    scales = graph.constant("embedding.scale", column_scales(table)[:, None])
    stored = graph.weight("embedding.weight", np.uint8, table.shape, _levels(table))
    rows = graph.node("Gather", [stored, "input_ids"], "embedding.rows")
    steps = graph.node("Gather", [scales, "input_ids"], "embedding.steps")
    one, zero = graph.constant("one", np.float32(1)), graph.constant("zero_point", np.uint8(_ZERO_POINT))
    levels = graph.node("DequantizeLinear", [rows, one, zero], "embedding.levels")
    return graph.node("Mul", [levels, steps], "embedding")


def _levels(table: Matrix) -> Iterator[NDArray[np.float32]]:
    for rows in _chunks(table):
        yield np.rint(rows / column_scales(rows)[:, None]) + _ZERO_POINT


def _chunks(table: Matrix) -> Iterator[Matrix]:
    for first in range(0, len(table), _CHUNK_ROWS):
        yield table[first : first + _CHUNK_ROWS]


_ZIPF_SHIFT, _ZIPF_WEIGHT = 50, 10
"""The law says more than the text does: with less weight, ids of the built-in text displace better ones."""


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


def trim(
    count: int, special: Iterable[int], vocabulary: int, seen: NDArray[np.int64] | None = None
) -> Trimming | None:
    """Keep the `count` likeliest ids and the special ones; None if that is the whole vocabulary.

    Byte-pair vocabularies number tokens in the order they were merged, so low ids are the frequent ones. How often
    each id was `seen` [vocabulary] in some text corrects that order.
    """
    if count < 1:
        raise SpecdecError(f"cannot trim the head to {count} tokens", fix="give a positive number, or 'none'")
    if count >= vocabulary:
        return None
    first = np.arange(count) if seen is None else likeliest(count, seen)
    extra = [token for token in special if 0 <= token < vocabulary]
    kept = np.union1d(first, np.array(extra, np.int64))
    pieces = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)
    return Trimming(tuple((int(piece[0]), int(piece[-1]) + 1) for piece in pieces))


def likeliest(count: int, seen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The `count` ids with the largest expected share of tokens: Zipf's law over ids, corrected by what was seen."""
    law = 1 / (np.arange(len(seen)) + _ZIPF_SHIFT)
    share = seen / max(int(seen.sum()), 1) + _ZIPF_WEIGHT * law / law.sum()
    return np.argsort(-share, kind="stable")[:count]


def scatter(graph: Graph, trimming: Trimming, vocabulary: int, padding: float) -> None:
    """From `trimmed_logits` [1, S, kept] to `logits` [1, S, vocabulary], `padding` where no id is kept."""
    first, end = trimming.ranges[0]
    rest = trimming.ids()[end - first :]
    lengths = graph.constant("piece_lengths", np.array([end - first, len(rest)]))
    head, tail = graph.nodes("Split", ["trimmed_logits", lengths], ["piece.head", "piece.tail"], axis=-1)
    pads = graph.constant("piece.pads", np.array([0, 0, first, 0, 0, vocabulary - end]))
    rows = graph.node("Pad", [head, pads, graph.constant("padding", np.float32(padding))], "piece.rows")
    places = graph.constant("piece.ids", rest.astype(np.int32)[None, None])
    everywhere = graph.node("Expand", [places, graph.node("Shape", [tail], "piece.shape")], "piece.places")
    graph.node("ScatterElements", [rows, everywhere, tail], "logits", axis=2)
