"""One decoder layer as nodes: attention with rotary and cache, gated feed-forward, fused residual norms."""

from collections.abc import Sequence

import numpy as np

from specdec_onnx.export.architecture import Architecture
from specdec_onnx.export.graph import MICROSOFT, Graph
from specdec_onnx.export.linear import Format, Matrix
from specdec_onnx.export.weights import Layer


class Block:
    """Adds layers to a graph that has the values seqlens_k, total_sequence_length, cos_cache and sin_cache."""

    def __init__(self, graph: Graph, architecture: Architecture, format: Format) -> None:
        self.graph, self.look, self.format = graph, architecture, format

    def layer(self, index: int, layer: Layer, x: str, residual: str) -> tuple[str, str]:
        """One layer over x + residual (either may be empty); what it adds, and the sum to add it to."""
        name = f"layer.{index}"
        normed, residual = self.norm(x, residual, layer.input_norm, f"{name}.input_norm")
        attended = self._attention(index, normed, layer)
        output = self._linear(attended, layer.output, layer.output_bias, f"{name}.output")
        normed, residual = self.norm(output, residual, layer.post_norm, f"{name}.post_norm")
        return self._feed_forward(normed, layer, name), residual

    def norm(self, x: str, residual: str, scale: Matrix, name: str) -> tuple[str, str]:
        """RMS norm of x + residual; returns it and the sum."""
        weight, epsilon = self.graph.constant(f"{name}.weight", scale), self.look.epsilon
        if not residual:
            self.graph.node("SimplifiedLayerNormalization", [x, weight], name, axis=-1, epsilon=epsilon)
            return name, x
        outputs, inputs = [name, "", "", f"{name}.sum"], [x, residual, weight]
        self.graph.nodes(
            "SkipSimplifiedLayerNormalization", inputs, outputs, domain=MICROSOFT, epsilon=epsilon
        )
        return name, outputs[3]

    def _attention(self, index: int, x: str, layer: Layer) -> str:
        look, name = self.look, f"layer.{index}.attention"
        qkv = self._linear(x, layer.qkv, layer.qkv_bias, f"layer.{index}.qkv")
        past, present = self._caches(index)
        inputs = [qkv, "", "", *past, "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"]
        sizes = {"num_heads": look.heads, "kv_num_heads": look.kv_heads}
        switches = {"do_rotary": 1, "rotary_interleaved": 0, "scale": look.head_dim**-0.5}
        outputs = [name, *present]
        self.graph.nodes("GroupQueryAttention", inputs, outputs, domain=MICROSOFT, **sizes, **switches)
        return name

    def _caches(self, index: int) -> tuple[Sequence[str], Sequence[str]]:
        """The layer's cache as graph inputs and as outputs."""
        graph, look = self.graph, self.look
        past = [1, look.kv_heads, "past_length", look.head_dim]
        present = [1, look.kv_heads, "present_length", look.head_dim]
        kinds = ("key", "value")
        return (
            [graph.input(f"past_key_values.{index}.{kind}", np.float32, past) for kind in kinds],
            [graph.output(f"present.{index}.{kind}", np.float32, present) for kind in kinds],
        )

    def _feed_forward(self, x: str, layer: Layer, name: str) -> str:
        graph = self.graph
        both = self._linear(x, layer.gate_up, layer.gate_up_bias, f"{name}.gate_up")
        gate, up = graph.nodes("Split", [both], [f"{name}.gate", f"{name}.up"], axis=-1, num_outputs=2)
        active = graph.node("QuickGelu", [gate], f"{name}.active", domain=MICROSOFT, alpha=1.0)
        product = graph.node("Mul", [active, up], f"{name}.product")
        return self._linear(product, layer.down, layer.down_bias, f"{name}.down")

    def _linear(self, x: str, weight: Matrix, bias: Matrix | None, name: str) -> str:
        if bias is None:
            return self.format.linear(self.graph, x, weight, name)
        product = self.format.linear(self.graph, x, weight, f"{name}.unbiased")
        return self.graph.node("Add", [product, self.graph.constant(f"{name}.bias", bias)], name)
