"""Models of one MatMulNBits node, with the matrix they stand for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from specdec_onnx.runtime.kernels import Kernels
from specdec_onnx.runtime.model.device import session_options

Array = NDArray[Any]


@dataclass(frozen=True)
class Product:
    """y = x·Wᵀ + bias, W [columns, inner] in blocks; `zeros` is None, "packed", "float" or "parts" (floats that are sixteenths)."""

    columns: int
    inner: int
    bits: int = 4
    block: int = 32
    zeros: str | None = None
    bias: bool = False
    half: bool = False
    seed: int = 0

    @property
    def blocks(self) -> int:
        return -(-self.inner // self.block)

    @property
    def kind(self) -> type[np.floating[Any]]:
        return np.float16 if self.half else np.float32

    def stored(self) -> dict[str, Array]:
        """The node's constant inputs, by the name of the input."""
        rng = np.random.default_rng(self.seed)
        shape = (self.columns, self.blocks)
        found: dict[str, Array] = {
            "weights": rng.integers(0, 256, (*shape, self.block * self.bits // 8), dtype=np.uint8),
            "scales": (rng.random(shape) * 0.01 + 1e-3).astype(self.kind),
        }
        if self.zeros == "packed":
            size = (self.columns, -(-self.blocks * self.bits // 8))
            found["zeros"] = rng.integers(0, 256, size, dtype=np.uint8)
        elif self.zeros == "float":
            found["zeros"] = (rng.random(shape) * (1 << self.bits)).astype(self.kind)
        elif self.zeros == "parts":
            found["zeros"] = (rng.integers(0, 256, shape) / 16).astype(self.kind)
        if self.bias:
            found["bias"] = rng.standard_normal(self.columns).astype(self.kind)
        return found

    def zero_points(self, stored: dict[str, Array]) -> Array:
        """float64 [columns, blocks]."""
        if self.zeros is None:
            return np.full((self.columns, self.blocks), 1 << (self.bits - 1), np.float64)
        if self.zeros == "packed":
            return self._unpack(stored["zeros"])[:, : self.blocks].astype(np.float64)
        return stored["zeros"].astype(np.float64)

    def _unpack(self, packed: Array) -> Array:
        if self.bits == 8:
            return packed
        return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)

    def matrix(self) -> Array:
        """W in float64."""
        stored = self.stored()
        levels = self._unpack(stored["weights"]).astype(np.float64)
        whole = (levels - self.zero_points(stored)[..., None]) * stored["scales"].astype(np.float64)[
            ..., None
        ]
        return whole.reshape(self.columns, -1)[:, : self.inner]

    def expected(self, x: Array) -> tuple[Array, Array]:
        """The exact product of x [rows, inner], and the largest error that rounding rows to int8 can bring."""
        stored, matrix, exact = self.stored(), self.matrix(), x.astype(np.float64)
        y = exact @ matrix.T + (stored["bias"].astype(np.float64) if self.bias else 0)
        rows, weights = self._split(np.abs(exact)), self._split(np.abs(matrix))
        steps = rows.max(axis=2) / 127
        rounding = steps / 2 @ weights.sum(axis=2).T
        reach = stored["scales"].astype(np.float64) * ((1 << self.bits) + np.abs(self.zero_points(stored)))
        arithmetic = 1e-6 * self.block * rows.max(axis=2) @ reach.T
        output = np.abs(y) * (2**-10 if self.half else 1e-6) + (1e-7 if self.half else 0)
        return y, rounding * 1.001 + arithmetic + output + 1e-30

    def _split(self, rows: Array) -> Array:
        padded = np.pad(rows, ((0, 0), (0, self.blocks * self.block - self.inner)))
        return padded.reshape(len(rows), self.blocks, self.block)

    def rows(self, count: int, seed: int = 1) -> Array:
        """Random input [count, inner], some of it large."""
        rng = np.random.default_rng(seed)
        spread = rng.choice([1e-3, 1, 30], (count, self.inner), p=[0.1, 0.88, 0.02])
        return (rng.standard_normal((count, self.inner)) * spread).astype(self.kind)


def model_of(
    product: Product, stored: dict[str, Array] | None = None, fed: Sequence[str] = (), **more: int
) -> bytes:
    """The model as bytes; inputs of the node named in `fed` are the model's own, `more` are attributes."""
    stored = product.stored() if stored is None else stored
    names = ["x", "weights", "scales", "zeros", "groups", "bias"]
    inputs = [name if name == "x" or name in stored else "" for name in names]
    while not inputs[-1]:
        inputs.pop()
    sizes = {"K": product.inner, "N": product.columns, "bits": product.bits, "block_size": product.block}
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **(sizes | more))
    kind = TensorProto.FLOAT16 if product.half else TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", kind, ["batch", "rows", "inner"])]
        + [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(stored[name].dtype), stored[name].shape
            )
            for name in fed
        ],
        [helper.make_tensor_value_info("y", kind, ["batch", "rows", "columns"])],
        [numpy_helper.from_array(array, name) for name, array in stored.items() if name not in fed],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def gated_model_of(product: Product, *, alpha: float = 1.0, axis: int = -1, also: str | None = None) -> bytes:
    """The product's first half, through SiLU, times its second half: y. `also` is a value that is an output too."""
    model = onnx.load_from_string(model_of(product))
    graph = model.graph
    graph.node[0].output[0] = "both"
    graph.node.extend(
        [
            helper.make_node("Split", ["both"], ["gate", "value"], axis=axis, num_outputs=2),
            helper.make_node("QuickGelu", ["gate"], ["open"], domain="com.microsoft", alpha=alpha),
            helper.make_node("Mul", ["value", "open"], ["y"]),
        ]
    )
    if also is not None:
        kind = graph.output[0].type.tensor_type.elem_type
        graph.output.append(helper.make_tensor_value_info(also, kind, ["batch", "rows", "half"]))
    return bytes(model.SerializeToString())


def open_with(kernels: Kernels, model: bytes | str, threads: int = 2) -> tuple[ort.InferenceSession, Kernels]:
    """A session as decoders open them, and what it runs on."""

    def opener(options: ort.SessionOptions) -> ort.InferenceSession:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    return kernels.open(opener, partial(session_options, threads))


def run(session: ort.InferenceSession, x: Array) -> Array:
    """y [rows, columns] of x [rows, inner]."""
    found: Array = session.run(None, {"x": x[None]})[0][0]
    return found


def save_outside(model: bytes, folder: Any) -> Any:
    """The model in a file, its constants in another; the first file's path."""
    proto = onnx.load_from_string(model)
    path = folder / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    return path
