"""The embedding table: bytes where they lose nothing that shows, half precision where they would."""

from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray

from specdec_onnx.export.graph import Graph
from specdec_onnx.export.linear import Format, Int4, Matrix, RowwiseInt8, column_scales

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
