"""The decoder as a graph: GroupQueryAttention with rotary, packed projections, fused residual norms."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specdec_onnx.export.architecture import Architecture
from specdec_onnx.export.graph import MICROSOFT, Graph
from specdec_onnx.export.linear import Format, Matrix
from specdec_onnx.export.vocabulary import Trimming
from specdec_onnx.export.weights import Layer, Weights
from specdec_onnx.export.writer import TensorFile

GRAPH_FILE = "model.onnx"
DATA_FILE = "model.onnx_data"
PADDING = -65504.0
"""Logit of an id that a trimmed head does not score: the lowest half-precision number."""

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

    def build(self, step: Step) -> None:
        total = self.look.layers + 2
        self._inputs()
        step("embedding", 0, total)
        x, residual = self._embed(), ""
        for index in range(self.look.layers):
            step(f"layer {index + 1} of {self.look.layers}", index + 1, total)
            x, residual = self._layer(index, x, residual)
        step("head", total - 1, total)
        self._head(self._last_rows(self.graph.node("Add", [x, residual], "hidden")))
        step("head", total, total)

    def _inputs(self) -> None:
        graph, look = self.graph, self.look
        graph.input("input_ids", np.int64, [1, "sequence_length"])
        mask = graph.input("attention_mask", np.int64, [1, "total_length"])
        one = graph.constant("one_int", np.array([1]))
        tokens = graph.node("ReduceSum", [mask, one], "tokens", keepdims=0)
        graph.node("Cast", [graph.node("Sub", [tokens, one], "last_token")], "seqlens_k", to=6)
        length = graph.node("Shape", [mask], "mask_length", start=1, end=2)
        scalar = graph.node("Squeeze", [length], "total")
        graph.node("Cast", [scalar], "total_sequence_length", to=6)
        cos, sin = look.rope.tables(self.recipe.positions)
        graph.constant("cos_cache", cos)
        graph.constant("sin_cache", sin)

    def _embed(self) -> str:
        rows = self.weights.embedding()
        table = self.graph.weight("embedding.weight", np.float32, rows.shape, [rows])
        return self.graph.node("Gather", [table, "input_ids"], "embedding")

    def _layer(self, index: int, x: str, residual: str) -> tuple[str, str]:
        layer, name = self.weights.layer(index), f"layer.{index}"
        normed, residual = self._norm(x, residual, layer.input_norm, f"{name}.input_norm")
        attended = self._attention(index, normed, layer)
        output = self._linear(attended, layer.output, layer.output_bias, f"{name}.output")
        normed, residual = self._norm(output, residual, layer.post_norm, f"{name}.post_norm")
        return self._feed_forward(normed, layer, name), residual

    def _norm(self, x: str, residual: str, scale: Matrix, name: str) -> tuple[str, str]:
        """RMS norm of x + residual; returns it and the sum."""
        weight = self.graph.constant(f"{name}.weight", scale)
        if not residual:
            self.graph.node(
                "SimplifiedLayerNormalization", [x, weight], name, axis=-1, epsilon=self.look.epsilon
            )
            return name, x
        outputs = [name, "", "", f"{name}.sum"]
        inputs = [x, residual, weight]
        self.graph.nodes(
            "SkipSimplifiedLayerNormalization", inputs, outputs, domain=MICROSOFT, epsilon=self.look.epsilon
        )
        return name, outputs[3]

    def _attention(self, index: int, x: str, layer: Layer) -> str:
        look, name = self.look, f"layer.{index}.attention"
        qkv = self._linear(x, layer.qkv, layer.qkv_bias, f"layer.{index}.qkv")
        past, present = [], []
        for kind in ("key", "value"):
            past.append(self._cache("input", f"past_key_values.{index}.{kind}", "past_length"))
            present.append(self._cache("output", f"present.{index}.{kind}", "present_length"))
        inputs = [qkv, "", "", *past, "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"]
        switches = {"do_rotary": 1, "rotary_interleaved": 0, "scale": look.head_dim**-0.5}
        sizes = {"num_heads": look.heads, "kv_num_heads": look.kv_heads}
        self.graph.nodes(
            "GroupQueryAttention", inputs, [name, *present], domain=MICROSOFT, **sizes, **switches
        )
        return name

    def _cache(self, kind: str, name: str, length: str) -> str:
        declare = self.graph.input if kind == "input" else self.graph.output
        return declare(name, np.float32, [1, self.look.kv_heads, length, self.look.head_dim])

    def _feed_forward(self, x: str, layer: Layer, name: str) -> str:
        graph = self.graph
        both = self._linear(x, layer.gate_up, layer.gate_up_bias, f"{name}.gate_up")
        gate, up = graph.nodes("Split", [both], [f"{name}.gate", f"{name}.up"], axis=-1, num_outputs=2)
        active = graph.node("QuickGelu", [gate], f"{name}.active", domain=MICROSOFT, alpha=1.0)
        product = graph.node("Mul", [active, up], f"{name}.product")
        return self._linear(product, layer.down, layer.down_bias, f"{name}.down")

    def _linear(self, x: str, weight: Matrix, bias: Matrix | None, name: str) -> str:
        if bias is None:
            return self.recipe.body.linear(self.graph, x, weight, name)
        product = self.recipe.body.linear(self.graph, x, weight, f"{name}.unbiased")
        return self.graph.node("Add", [product, self.graph.constant(f"{name}.bias", bias)], name)

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
        normed, _ = self._norm(x, "", self.weights.final_norm(), "final_norm")
        rows, trimming = self.weights.head(), self.recipe.trimming
        self.graph.output("logits", np.float32, [1, "logits_length", self.look.vocabulary])
        if trimming is None:
            self.recipe.head.linear(self.graph, normed, rows, "logits")
            return
        self.graph.output("trimmed_logits", np.float32, [1, "logits_length", trimming.size])
        self.recipe.head.linear(self.graph, normed, rows[trimming.ids()], "trimmed_logits")
        self._pad(trimming)

    def _pad(self, trimming: Trimming) -> None:
        """Spread trimmed logits over the whole vocabulary, PADDING between."""
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
