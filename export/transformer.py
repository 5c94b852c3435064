"""The whole decoder as a graph: token ids and cache in, logits and cache out."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specdec_onnx.export.architecture import Architecture
from specdec_onnx.export.block import Block
from specdec_onnx.export.embedding import add_embedding
from specdec_onnx.export.graph import Graph
from specdec_onnx.export.linear import Format
from specdec_onnx.export.scatter import scatter
from specdec_onnx.export.vocabulary import Trimming
from specdec_onnx.export.weights import Weights
from specdec_onnx.export.writer import TensorFile

GRAPH_FILE = "model.onnx"
DATA_FILE = "model.onnx_data"
PADDING = -65504.0
"""Logit of an id that a trimmed head does not score: the lowest half-precision number."""

_MOST_PIECES = 8
"""Ranges of kept ids that are padded one by one; more are scattered, which fewer devices can do."""

Step = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Recipe:
    """How weights are stored, how many positions the rotary tables cover, and which ids the head scores."""

    body: Format
    head: Format
    positions: int
    trimming: Trimming | None = None


def write_graph(
    folder: Path, weights: Weights, architecture: Architecture, recipe: Recipe, step: Step
) -> dict[str, int]:
    """Write model.onnx and its data into `folder`; returns the bytes of each tensor in the data file."""
    with TensorFile(folder / DATA_FILE) as data:
        graph = Graph(data)
        _Decoder(graph, weights, architecture, recipe).build(step)
        graph.save(folder / GRAPH_FILE)
    return data.sizes


class _Decoder:
    """Walks the model from token ids to logits, one layer's weights in memory at a time."""

    def __init__(self, graph: Graph, weights: Weights, architecture: Architecture, recipe: Recipe) -> None:
        self.graph, self.weights, self.look, self.recipe = graph, weights, architecture, recipe
        self.block = Block(graph, architecture, recipe.body, recipe.positions)

    def build(self, step: Step) -> None:
        total = self.look.layers + 2
        self._inputs()
        step("embedding", 0, total)
        x, residual = add_embedding(self.graph, self.weights.embedding(), self.recipe.body), ""
        for index in range(self.look.layers):
            step(f"layer {index + 1} of {self.look.layers}", index + 1, total)
            x, residual = self.block.layer(index, self.weights.layer(index), x, residual)
        step("head", total - 1, total)
        self._head(self._last_rows(self.graph.node("Add", [x, residual], "hidden")))
        step("head", total, total)

    def _inputs(self) -> None:
        graph = self.graph
        graph.input("input_ids", np.int64, [1, "sequence_length"])
        mask = graph.input("attention_mask", np.int64, [1, "total_length"])
        one = graph.constant("one_int", np.array([1]))
        tokens = graph.node("ReduceSum", [mask, one], "tokens", keepdims=0)
        graph.node("Cast", [graph.node("Sub", [tokens, one], "last_token")], "seqlens_k", to=6)
        length = graph.node("Shape", [mask], "mask_length", start=1, end=2)
        scalar = graph.node("Squeeze", [length], "total")
        graph.node("Cast", [scalar], "total_sequence_length", to=6)

    def _last_rows(self, x: str) -> str:
        """The last num_logits_to_keep rows; all of them for 0, its default."""
        graph = self.graph
        keep = graph.input("num_logits_to_keep", np.int64, [])
        graph.constant(keep, np.int64(0))
        axis = graph.constant("one_int", np.array([1]))
        first = graph.node(
            "Unsqueeze",
            [graph.node("Neg", [keep], "first_row"), graph.constant("zero_int", np.array([0]))],
            "first_rows",
        )
        end = graph.constant("end_int", np.array([np.iinfo(np.int64).max]))
        return graph.node("Slice", [x, first, end, axis], "kept")

    def _head(self, x: str) -> None:
        normed, _ = self.block.norm(x, "", self.weights.final_norm(), "final_norm")
        rows, stored = self.weights.head(), self.weights.head_blocks()
        trimming = self.recipe.trimming
        self.graph.output("logits", np.float32, [1, "logits_length", self.look.vocabulary])
        if trimming is None:
            self.block.logits(normed, rows, self.recipe.head, "logits", stored)
            return
        ids = trimming.ids()
        stored = stored.rows(ids) if stored is not None else None
        self.graph.output("trimmed_logits", np.float32, [1, "logits_length", trimming.size])
        self.block.logits(normed, rows[ids], self.recipe.head, "trimmed_logits", stored)
        self._pad(trimming)

    def _pad(self, trimming: Trimming) -> None:
        """Spread trimmed logits over the whole vocabulary, PADDING between."""
        if len(trimming.ranges) > _MOST_PIECES:
            scatter(self.graph, trimming, self.look.vocabulary, PADDING)
            return
        graph = self.graph
        lengths = graph.constant("range_lengths", np.array([end - first for first, end in trimming.ranges]))
        parts = [f"range.{first}" for first, _ in trimming.ranges]
        graph.nodes("Split", ["trimmed_logits", lengths], parts, axis=-1)
        starts = [first for first, _ in trimming.ranges[1:]] + [self.look.vocabulary]
        filler = graph.constant("padding", np.float32(PADDING))
        padded = []
        for part, (_, end), start in zip(parts, trimming.ranges, starts, strict=True):
            pads = graph.constant(f"{part}.pads", np.array([0, 0, 0, 0, 0, start - end]))
            padded.append(graph.node("Pad", [part, pads, filler], f"{part}.padded"))
        graph.node("Concat", padded, "logits", axis=-1)
