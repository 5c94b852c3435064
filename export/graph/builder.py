"""An ONNX graph under construction: nodes in memory, large tensors straight to disk."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import helper

MICROSOFT = "com.microsoft"
OPSET = 21
IR_VERSION = 10
_INLINE_BYTES = 1024
_ALIGNMENT = 4096

Dimension = int | str


@dataclass
class TensorFile:
    """The external data of a graph, a context manager; `sizes` are the bytes of each tensor."""

    path: Path
    sizes: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._file = self.path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(
        self, name: str, dtype: DTypeLike, shape: Sequence[int], chunks: Iterable[NDArray[Any]]
    ) -> onnx.TensorProto:
        """Append a tensor from row-major `chunks`, on a page boundary; returns its entry for the graph."""
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
        offset = self._file.tell()
        for chunk in chunks:
            self._file.write(np.ascontiguousarray(chunk, dtype).data)
        self.sizes[name] = self._file.tell() - offset
        expected = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self.sizes[name] != expected:
            raise ValueError(f"{name}: {self.sizes[name]} bytes written, {expected} expected")
        return self._entry(name, dtype, shape, offset)

    def _entry(self, name: str, dtype: DTypeLike, shape: Sequence[int], offset: int) -> onnx.TensorProto:
        proto = onnx.TensorProto(name=name, dims=list(shape), data_location=onnx.TensorProto.EXTERNAL)
        proto.data_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        entries = {"location": self.path.name, "offset": str(offset), "length": str(self.sizes[name])}
        proto.external_data.extend(
            onnx.StringStringEntryProto(key=key, value=value) for key, value in entries.items()
        )
        return proto


class Graph:
    """Collects nodes, inputs, outputs and tensors; methods that add a value return its name."""

    def __init__(self, data: TensorFile | None = None, opset: int = OPSET) -> None:
        self._data, self._opset = data, opset
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._tensors: dict[str, onnx.TensorProto] = {}

    def node(
        self, op: str, inputs: Sequence[str], output: str, *, domain: str = "", **attributes: Any
    ) -> str:
        """Append a node with one output."""
        return self.nodes(op, inputs, [output], domain=domain, **attributes)[0]

    def nodes(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], *, domain: str = "", **attributes: Any
    ) -> Sequence[str]:
        """Append a node with several outputs; unused ones have empty names."""
        name = next(output for output in outputs if output)
        self._nodes.append(helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes))
        return outputs

    def constant(self, name: str, value: NDArray[Any] | np.generic) -> str:
        """A tensor by value; the same name may be used again, and is stored once."""
        array = np.asarray(value)
        if name not in self._tensors:
            if array.nbytes > _INLINE_BYTES and self._data is not None:
                return self.weight(name, array.dtype, array.shape, [array])
            self._tensors[name] = onnx.numpy_helper.from_array(array, name)
        return name

    def weight(
        self, name: str, dtype: DTypeLike, shape: Sequence[int], chunks: Iterable[NDArray[Any]]
    ) -> str:
        """A tensor from row-major `chunks`, which are written to disk at once."""
        if self._data is None:
            raise ValueError(f"no file to put {name} in")
        self._tensors[name] = self._data.add(name, dtype, shape, chunks)
        return name

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[Dimension]) -> str:
        """A graph input, optional if there is a constant of the same name."""
        self._inputs.append(_value(name, dtype, shape))
        return name

    def output(self, name: str, dtype: DTypeLike, shape: Sequence[Dimension]) -> str:
        """A graph output, the output of a node of that name."""
        self._outputs.append(_value(name, dtype, shape))
        return name

    def copy(self, node: onnx.NodeProto) -> None:
        """Append another graph's node."""
        self._nodes.append(node)

    def copy_signature(self, graph: onnx.GraphProto) -> None:
        """Use another graph's inputs and outputs."""
        self._inputs.extend(graph.input)
        self._outputs.extend(graph.output)

    def save(self, path: Path) -> None:
        """Write the graph; its tensors must lie in the same folder."""
        path.write_bytes(self.serialize())

    def serialize(self) -> bytes:
        """The model without its large tensors; the same nodes give the same bytes."""
        tensors = list(self._tensors.values())
        graph = helper.make_graph(self._nodes, "decoder", self._inputs, self._outputs, tensors)
        opsets = [helper.make_opsetid("", self._opset), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="specdec-onnx"
        )
        return model.SerializeToString(deterministic=True)


def _value(name: str, dtype: DTypeLike, shape: Sequence[Dimension]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))
