"""One decoder layer as nodes: attention with rotary and cache, gated feed-forward, fused residual norms."""

from collections.abc import Sequence

import numpy as np

from specdec_onnx.export.architecture import Architecture
from specdec_onnx.export.blockwise import Blocks
from specdec_onnx.export.graph import MICROSOFT, Graph
from specdec_onnx.export.linear import Format, Matrix, WeightOnly
from specdec_onnx.export.rope import Rope
from specdec_onnx.export.weights import Layer

_GELUS = {"gelu": "none", "gelu_tanh": "tanh"}


class Block:
    """Adds layers to a graph that has the values seqlens_k and total_sequence_length, for texts of `positions`."""

    def __init__(self, graph: Graph, architecture: Architecture, format: Format, positions: int) -> None:
        self.graph, self.look, self.format, self.positions = graph, architecture, format, positions
        self._tables: dict[Rope, Sequence[str]] = {}

    def layer(self, index: int, layer: Layer, x: str, residual: str) -> tuple[str, str]:
        """One layer over x + residual (either may be empty); what it adds, and the sum to add it to."""
        name = f"layer.{index}"
        normed, residual = self.norm(x, residual, layer.input_norm, f"{name}.input_norm")
        attended = self._attention(index, normed, layer)
        output = self._linear(
            attended, layer.output, layer.output_bias, f"{name}.output", layer.blocks.get("output")
        )
        output, _ = self.norm(output, "", layer.attention_norm, f"{name}.attention_norm")
        normed, residual = self.norm(output, residual, layer.post_norm, f"{name}.post_norm")
        output = self._feed_forward(normed, layer, name)
        return self.norm(output, "", layer.feed_forward_norm, f"{name}.feed_forward_norm")[0], residual

    def norm(self, x: str, residual: str, scale: Matrix | None, name: str) -> tuple[str, str]:
        """RMS norm of x + residual, or nothing without a scale; returns it and the sum."""
        if scale is None:
            total = self.graph.node("Add", [x, residual], f"{name}.sum") if residual else x
            return total, total
        weight, epsilon = self.graph.constant(f"{name}.weight", scale), self.look.epsilon
        if not residual:
            self.graph.node("SimplifiedLayerNormalization", [x, weight], name, axis=-1, epsilon=epsilon)
            return name, x
        outputs, inputs = [name, "", "", f"{name}.sum"], [x, residual, weight]
        self.graph.nodes(
            "SkipSimplifiedLayerNormalization", inputs, outputs, domain=MICROSOFT, epsilon=epsilon
        )
        return name, outputs[3]

    def logits(self, x: str, head: Matrix, format: Format, name: str, stored: Blocks | None = None) -> str:
        """Scores of the rows of `head`, bounded where the family does that."""
        cap = self.look.scales.logits_cap
        if not cap:
            return self._product(x, head, format, name, stored)
        graph, limit = self.graph, self.graph.constant("logits_cap", np.float32(cap))
        scores = self._product(x, head, format, f"{name}.unbounded", stored)
        bent = graph.node("Tanh", [graph.node("Div", [scores, limit], f"{name}.share")], f"{name}.bent")
        return graph.node("Mul", [bent, limit], name)

    def _attention(self, index: int, x: str, layer: Layer) -> str:
        look, name, span = self.look, f"layer.{index}.attention", layer.span
        qkv = self._linear(x, layer.qkv, layer.qkv_bias, f"layer.{index}.qkv", layer.blocks.get("qkv"))
        past, present = self._caches(index)
        tables = self._rotary(span.rope) if span.rope else ("", "")
        inputs = [*self._apart(index, qkv, layer), *past, "seqlens_k", "total_sequence_length", *tables]
        switches = {"num_heads": look.heads, "kv_num_heads": look.kv_heads, "scale": look.scales.attention}
        switches |= {"do_rotary": int(span.rope is not None), "rotary_interleaved": 0}
        if span.window and span.window < self.positions:
            switches["local_window_size"] = span.window
        if look.scales.attention_cap:
            switches["softcap"] = look.scales.attention_cap
        self.graph.nodes("GroupQueryAttention", inputs, [name, *present], domain=MICROSOFT, **switches)
        return name

    def _rotary(self, rope: Rope) -> Sequence[str]:
        """Names of the cosine and sine tables, stored once for all layers that turn alike."""
        if rope not in self._tables:
            ending = f".{len(self._tables)}" if self._tables else ""
            self._tables[rope] = [
                self.graph.constant(f"{name}_cache{ending}", table)
                for name, table in zip(("cos", "sin"), rope.tables(self.positions), strict=True)
            ]
        return self._tables[rope]

    def _apart(self, index: int, qkv: str, layer: Layer) -> Sequence[str]:
        """Packed query, key and value as they are; one by one if query and key are normed first."""
        if layer.query_norm is None or layer.key_norm is None:
            return qkv, "", ""
        names = [f"layer.{index}.{part}" for part in ("query", "key", "value")]
        sizes = self.graph.constant("qkv_sizes", np.array(self.look.qkv_sizes))
        query, key, value = self.graph.nodes("Split", [qkv, sizes], names, axis=-1)
        return self._row_norm(query, layer.query_norm), self._row_norm(key, layer.key_norm), value

    def _row_norm(self, x: str, scale: Matrix) -> str:
        """Norm of a projection, over each head if `scale` is that long."""
        name = f"{x}_norm"
        if self.look.family.qk_norm == "projection":
            return self.norm(x, "", scale, name)[0]
        split = self.graph.constant("split_heads", np.array([0, 0, -1, self.look.head_dim]))
        joined = self.graph.constant("join_heads", np.array([0, 0, -1]))
        heads = self.graph.node("Reshape", [x, split], f"{x}.heads")
        return self.graph.node("Reshape", [self.norm(heads, "", scale, name)[0], joined], f"{name}.rows")

    def _caches(self, index: int) -> tuple[Sequence[str], Sequence[str]]:
        """The layer's cache as graph inputs and as outputs."""
        graph, look = self.graph, self.look
        past: list[int | str] = [1, look.kv_heads, "past_length", look.head_dim]
        present: list[int | str] = [1, look.kv_heads, "present_length", look.head_dim]
        kinds = ("key", "value")
        return (
            [graph.input(f"past_key_values.{index}.{kind}", np.float32, past) for kind in kinds],
            [graph.output(f"present.{index}.{kind}", np.float32, present) for kind in kinds],
        )

    def _feed_forward(self, x: str, layer: Layer, name: str) -> str:
        graph = self.graph
        both = self._linear(
            x, layer.gate_up, layer.gate_up_bias, f"{name}.gate_up", layer.blocks.get("gate_up")
        )
        gate, up = graph.nodes("Split", [both], [f"{name}.gate", f"{name}.up"], axis=-1, num_outputs=2)
        product = graph.node("Mul", [self._activated(gate, f"{name}.active"), up], f"{name}.product")
        return self._linear(product, layer.down, layer.down_bias, f"{name}.down", layer.blocks.get("down"))

    def _activated(self, x: str, name: str) -> str:
        if self.look.activation == "silu":
            return self.graph.node("QuickGelu", [x], name, domain=MICROSOFT, alpha=1.0)
        return self.graph.node("Gelu", [x], name, approximate=_GELUS[self.look.activation])

    def _linear(self, x: str, weight: Matrix, bias: Matrix | None, name: str, stored: Blocks | None) -> str:
        if bias is None:
            return self._product(x, weight, self.format, name, stored)
        product = self._product(x, weight, self.format, f"{name}.unbiased", stored)
        return self.graph.node("Add", [product, self.graph.constant(f"{name}.bias", bias)], name)

    def _product(self, x: str, weight: Matrix, format: Format, name: str, stored: Blocks | None) -> str:
        """x · weightᵀ, over the source's own blocks where there are any and the format takes them."""
        if stored is not None and isinstance(format, WeightOnly):
            return format.carry(self.graph, x, stored, weight.shape[1], name)
        return format.linear(self.graph, x, weight, name)
