"""The whole decoder as a graph: token ids and cache in, logits and cache out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specdec_onnx.export.checkpoint.weights import Layer, Weights
from specdec_onnx.export.graph.architecture import Architecture
from specdec_onnx.export.graph.builder import MICROSOFT, Graph, TensorFile
from specdec_onnx.export.graph.rope import Rope
from specdec_onnx.export.graph.vocabulary import Trimming, add_embedding, pad_logits
from specdec_onnx.export.quantization.linear import Blocks, Format, Matrix, WeightOnly
from specdec_onnx.models.progress import Progress

GRAPH_FILE = "model.onnx"
DATA_FILE = "model.onnx_data"

_GELUS = {"gelu": "none", "gelu_tanh": "tanh"}


@dataclass(frozen=True)
class Recipe:
    """How weights are stored, how many positions the rotary tables cover, and which ids the head scores."""

    format: Format
    positions: int
    trimming: Trimming | None = None


def write_graph(
    folder: Path, weights: Weights, architecture: Architecture, recipe: Recipe, progress: Progress
) -> dict[str, int]:
    """Write model.onnx and its data into `folder`; returns the bytes of each tensor in the data file."""
    with TensorFile(folder / DATA_FILE) as data:
        graph = Graph(data)
        _DecoderBuilder(graph, weights, architecture, recipe).build(progress)
        graph.save(folder / GRAPH_FILE)
    return data.sizes


class _DecoderBuilder:
    """Walks the model from token ids to logits, one layer's weights in memory at a time."""

    def __init__(self, graph: Graph, weights: Weights, architecture: Architecture, recipe: Recipe) -> None:
        self.graph, self.weights, self.architecture, self.recipe = graph, weights, architecture, recipe
        self.layers = LayerBuilder(graph, architecture, recipe.format, recipe.positions)

    def build(self, progress: Progress) -> None:
        total = self.architecture.layers + 2
        self._inputs()
        progress("embedding", 0, total)
        x, residual = add_embedding(self.graph, self.weights.embedding(), self.recipe.format), ""
        for index in range(self.architecture.layers):
            progress(f"layer {index + 1} of {self.architecture.layers}", index + 1, total)
            x, residual = self.layers.layer(index, self.weights.layer(index), x, residual)
        progress("head", total - 1, total)
        self._head(self._last_rows(self.graph.node("Add", [x, residual], "hidden")))
        progress("head", total, total)

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
        normed, _ = self.layers.norm(x, "", self.weights.final_norm(), "final_norm")
        stored, trimming = self.weights.head_blocks(), self.recipe.trimming
        # The largest matrix: of one that is copied, only the shape is needed.
        shape = (self.architecture.vocabulary, self.architecture.hidden)
        rows = self.weights.head() if stored is None else np.broadcast_to(np.float32(0), shape)
        self.graph.output("logits", np.float32, [1, "logits_length", self.architecture.vocabulary])
        if trimming is None:
            self.layers.logits(normed, rows, self.recipe.format, "logits", stored)
            return
        ids = trimming.ids()
        stored = [part.rows(ids) for part in stored] if stored is not None else None
        self.graph.output("trimmed_logits", np.float32, [1, "logits_length", trimming.size])
        rows = rows if stored is not None else rows[ids]
        self.layers.logits(normed, rows, self.recipe.format, "trimmed_logits", stored)
        pad_logits(self.graph, trimming, self.architecture.vocabulary)


class LayerBuilder:
    """Adds layers to a graph that has the values seqlens_k and total_sequence_length, for texts of `positions`."""

    def __init__(self, graph: Graph, architecture: Architecture, format: Format, positions: int) -> None:
        self.graph, self.architecture, self.format, self.positions = graph, architecture, format, positions
        self._tables: dict[Rope, Sequence[str]] = {}

    def layer(self, index: int, layer: Layer, x: str, residual: str) -> tuple[str, str]:
        """One layer over x + residual (which may be empty); returns what it adds, and the sum to add it to."""
        name = f"layer.{index}"
        normed, residual = self.norm(x, residual, layer.input_norm, f"{name}.input_norm")
        output = self._linear(self._attention(index, normed, layer), layer, "output", name)
        output, _ = self.norm(output, "", layer.attention_norm, f"{name}.attention_norm")
        normed, residual = self.norm(output, residual, layer.post_norm, f"{name}.post_norm")
        output = self._feed_forward(normed, layer, name)
        return self.norm(output, "", layer.feed_forward_norm, f"{name}.feed_forward_norm")[0], residual

    def norm(self, x: str, residual: str, scale: Matrix | None, name: str) -> tuple[str, str]:
        """RMS norm of x + residual, or nothing without a scale; returns it and the sum."""
        if scale is None:
            total = self.graph.node("Add", [x, residual], f"{name}.sum") if residual else x
            return total, total
        weight, epsilon = self.graph.constant(f"{name}.weight", scale), self.architecture.epsilon
        if not residual:
            self.graph.node("SimplifiedLayerNormalization", [x, weight], name, axis=-1, epsilon=epsilon)
            return name, x
        outputs, inputs = [name, "", "", f"{name}.sum"], [x, residual, weight]
        self.graph.nodes(
            "SkipSimplifiedLayerNormalization", inputs, outputs, domain=MICROSOFT, epsilon=epsilon
        )
        return name, outputs[3]

    def logits(
        self, x: str, head: Matrix, format: Format, name: str, stored: Sequence[Blocks] | None = None
    ) -> str:
        """Scores of the rows of `head`, bounded where the family does that."""
        cap = self.architecture.scales.logits_cap
        if not cap:
            return self._product(x, head, format, name, stored)
        graph, limit = self.graph, self.graph.constant("logits_cap", np.float32(cap))
        scores = self._product(x, head, format, f"{name}.unbounded", stored)
        bent = graph.node("Tanh", [graph.node("Div", [scores, limit], f"{name}.share")], f"{name}.bent")
        return graph.node("Mul", [bent, limit], name)

    def _attention(self, index: int, x: str, layer: Layer) -> str:
        architecture, name, span = self.architecture, f"layer.{index}.attention", layer.span
        qkv = self._linear(x, layer, "qkv", f"layer.{index}")
        past, present = self._caches(index)
        tables = self._rotary(span.rope) if span.rope else ("", "")
        inputs = [*self._split_qkv(index, qkv, layer), *past, "seqlens_k", "total_sequence_length", *tables]
        switches = {
            "num_heads": architecture.heads,
            "kv_num_heads": architecture.kv_heads,
            "scale": architecture.scales.attention,
        }
        switches |= {"do_rotary": int(span.rope is not None), "rotary_interleaved": 0}
        if span.window and span.window < self.positions:
            switches["local_window_size"] = span.window
        if architecture.scales.attention_cap:
            switches["softcap"] = architecture.scales.attention_cap
        self.graph.nodes("GroupQueryAttention", inputs, [name, *present], domain=MICROSOFT, **switches)
        return name

    def _rotary(self, rope: Rope) -> Sequence[str]:
        """Names of the cosine and sine tables, stored once for all layers with the same rotation."""
        if rope not in self._tables:
            suffix = f".{len(self._tables)}" if self._tables else ""
            self._tables[rope] = [
                self.graph.constant(f"{name}_cache{suffix}", table)
                for name, table in zip(("cos", "sin"), rope.tables(self.positions), strict=True)
            ]
        return self._tables[rope]

    def _split_qkv(self, index: int, qkv: str, layer: Layer) -> Sequence[str]:
        """Packed query, key and value as they are; one by one if query and key are normed first."""
        if layer.query_norm is None or layer.key_norm is None:
            return qkv, "", ""
        names = [f"layer.{index}.{part}" for part in ("query", "key", "value")]
        sizes = self.graph.constant("qkv_sizes", np.array(self.architecture.qkv_sizes))
        query, key, value = self.graph.nodes("Split", [qkv, sizes], names, axis=-1)
        return self._row_norm(query, layer.query_norm), self._row_norm(key, layer.key_norm), value

    def _row_norm(self, x: str, scale: Matrix) -> str:
        """Norm of a projection, over each head if `scale` is that long."""
        name = f"{x}_norm"
        if self.architecture.family.qk_norm == "projection":
            return self.norm(x, "", scale, name)[0]
        split = self.graph.constant("split_heads", np.array([0, 0, -1, self.architecture.head_dim]))
        joined = self.graph.constant("join_heads", np.array([0, 0, -1]))
        heads = self.graph.node("Reshape", [x, split], f"{x}.heads")
        return self.graph.node("Reshape", [self.norm(heads, "", scale, name)[0], joined], f"{name}.rows")

    def _caches(self, index: int) -> tuple[Sequence[str], Sequence[str]]:
        """The layer's cache as graph inputs and as outputs."""
        graph, architecture = self.graph, self.architecture
        past: list[int | str] = [1, architecture.kv_heads, "past_length", architecture.head_dim]
        present: list[int | str] = [1, architecture.kv_heads, "present_length", architecture.head_dim]
        kinds = ("key", "value")
        return (
            [graph.input(f"past_key_values.{index}.{kind}", np.float32, past) for kind in kinds],
            [graph.output(f"present.{index}.{kind}", np.float32, present) for kind in kinds],
        )

    def _feed_forward(self, x: str, layer: Layer, name: str) -> str:
        graph = self.graph
        both = self._linear(x, layer, "gate_up", name)
        gate, up = graph.nodes("Split", [both], [f"{name}.gate", f"{name}.up"], axis=-1, num_outputs=2)
        product = graph.node("Mul", [self._activated(gate, f"{name}.active"), up], f"{name}.product")
        return self._linear(product, layer, "down", name)

    def _activated(self, x: str, name: str) -> str:
        if self.architecture.activation == "silu":
            return self.graph.node("QuickGelu", [x], name, domain=MICROSOFT, alpha=1.0)
        return self.graph.node("Gelu", [x], name, approximate=_GELUS[self.architecture.activation])

    def _linear(self, x: str, layer: Layer, kind: str, prefix: str) -> str:
        (weight, bias, stored), name = layer.linear(kind), f"{prefix}.{kind}"
        if bias is None:
            return self._product(x, weight, self.format, name, stored)
        product = self._product(x, weight, self.format, f"{name}.unbiased", stored)
        return self.graph.node("Add", [product, self.graph.constant(f"{name}.bias", bias)], name)

    def _product(
        self, x: str, weight: Matrix, format: Format, name: str, stored: Sequence[Blocks] | None
    ) -> str:
        """x · weightᵀ, with the source's own blocks if the format takes them."""
        if stored is not None and isinstance(format, WeightOnly):
            return format.copy_blocks(self.graph, x, stored, weight.shape[1], name)
        return format.linear(self.graph, x, weight, name)
