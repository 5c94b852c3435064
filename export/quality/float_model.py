"""A checkpoint run in float32 over whole texts, one layer in memory at a time: what exports are compared with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike, NDArray

from specdec_onnx.export.checkpoint import Checkpoint
from specdec_onnx.export.checkpoint.weights import Layer, Weights
from specdec_onnx.export.graph.architecture import Architecture, read_architecture
from specdec_onnx.export.graph.builder import MICROSOFT, Dimension, Graph
from specdec_onnx.export.graph.transformer import LayerBuilder
from specdec_onnx.export.quantization.linear import Float32
from specdec_onnx.runtime.model.device import session_options

Array = NDArray[np.float32]


class FloatModel:
    """A checkpoint run in float32 over whole texts."""

    def __init__(self, checkpoint: Checkpoint, architecture: Architecture | None = None) -> None:
        """As `architecture` reads it, if given; SpecdecError for a checkpoint that the exporter cannot read."""
        self._architecture = architecture or read_architecture(checkpoint.config)
        self._weights = Weights(checkpoint, self._architecture)
        self._sessions: dict[bytes, ort.InferenceSession] = {}

    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits of every position: [len(tokens), vocabulary]."""
        x = self.embed(np.asarray([tokens]))
        residual = np.zeros_like(x)
        for index in range(self._architecture.layers):
            x, residual, _ = self.layer(self._weights.layer(index), x, residual)
        return self._head(x + residual)[0]

    def embed(self, tokens: NDArray[np.int64]) -> Array:
        """What the first layer reads of several texts [texts, length]: [texts, length, hidden]."""
        return self._weights.embedding()[tokens]

    def layer(self, layer: Layer, x: Array, residual: Array) -> tuple[Array, Array, dict[str, Array]]:
        """One layer over whole texts [texts, length, hidden]: its results, and what each linear layer read."""
        graph, (texts, length, _) = FedGraph(), x.shape
        graph.feed("x", x)
        graph.feed("residual", residual)
        graph.constant("seqlens_k", np.full(texts, length - 1, np.int32))
        graph.constant("total_sequence_length", np.array(length, np.int32))
        format = RecordingFloat32()
        outputs = LayerBuilder(graph, self._architecture, format, length).layer(0, layer, "x", "residual")
        empty = np.zeros((texts, self._architecture.kv_heads, 0, self._architecture.head_dim), np.float32)
        graph.feeds |= {f"past_key_values.0.{kind}": empty for kind in ("key", "value")}
        x, residual, *read = self._run(graph, [*outputs, *format.inputs.values()])
        return x, residual, dict(zip(format.inputs, read, strict=True))

    def normed(self, x: Array) -> Array:
        """What the head reads: the final norm of [texts, length, hidden]."""
        graph = FedGraph()
        graph.feed("x", x)
        layers = LayerBuilder(graph, self._architecture, Float32(), x.shape[1])
        name, _ = layers.norm("x", "", self._weights.final_norm(), "final_norm")
        return self._run(graph, [name])[0]

    def _head(self, x: Array) -> Array:
        graph = FedGraph()
        graph.feed("x", self.normed(x))
        layers = LayerBuilder(graph, self._architecture, Float32(), x.shape[1])
        format = RecordingFloat32()
        return self._run(graph, [layers.logits("x", self._weights.head(), format, "logits")])[0]

    def _run(self, graph: "FedGraph", outputs: Sequence[str]) -> Any:
        for name in dict.fromkeys(outputs):
            graph.output(name, np.float32, [f"axis_{axis}" for axis in range(3)])
        model = graph.serialize()
        if model not in self._sessions:
            self._sessions[model] = ort.InferenceSession(model, session_options())
        return self._sessions[model].run(outputs, graph.feeds)


class FedGraph(Graph):
    """A graph whose float tensors are inputs; `feeds` holds what this instance was built with."""

    def __init__(self) -> None:
        super().__init__()
        self.feeds: dict[str, NDArray[Any]] = {}

    def feed(self, name: str, array: NDArray[Any]) -> str:
        """An input and its value."""
        self.feeds[name] = array
        return self.input(name, array.dtype, array.shape)

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[Dimension]) -> str:
        """As in any graph, but caches hold several texts."""
        texts = ["texts", *shape[1:]] if name.startswith("past_key_values.") else shape
        return super().input(name, dtype, texts)

    def constant(self, name: str, value: NDArray[Any] | np.generic) -> str:
        """Float tensors are fed, all else is part of the graph."""
        array = np.asarray(value)
        return self.feed(name, array) if array.dtype.kind == "f" else super().constant(name, array)

    def weight(
        self, name: str, dtype: DTypeLike, shape: Sequence[int], chunks: Iterable[NDArray[Any]]
    ) -> str:
        """The chunks joined, and fed."""
        array, filled = np.empty(int(np.prod(shape)), dtype), 0
        for chunk in chunks:
            array[filled : filled + chunk.size] = chunk.ravel()
            filled += chunk.size
        return self.feed(name, array.reshape(shape))


@dataclass(frozen=True)
class RecordingFloat32(Float32):
    """Float32 that notes which value each linear layer reads, under `qkv`, `output`, `gate_up` and `down`."""

    inputs: dict[str, str] = field(default_factory=dict)

    def linear(self, graph: Graph, x: str, weight: Array, name: str) -> str:
        """One product with the weights as they lie in memory, and a note."""
        self.inputs[name.removesuffix(".unbiased").rpartition(".")[2]] = x
        stored = graph.constant(f"{name}.weight", weight)
        return graph.node("FusedMatMul", [x, stored], name, domain=MICROSOFT, transB=1)
