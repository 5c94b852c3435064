"""Tensors streamed to disk: one file of external data, written in order, never held as a whole."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 4096


@dataclass
class TensorFile:
    """The external data beside a graph: `add` appends one tensor and returns its entry for the graph."""

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
        """Append a tensor whose row-major bytes arrive in `chunks`, starting on a page boundary."""
        self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
        offset = self._file.tell()
        for chunk in chunks:
            self._file.write(np.ascontiguousarray(chunk, dtype).data)
        self.sizes[name] = self._file.tell() - offset
        expected = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self.sizes[name] != expected:
            raise ValueError(f"{name}: {self.sizes[name]} bytes written, {expected} expected")
        return self._describe(name, dtype, shape, offset)

    def _describe(self, name: str, dtype: DTypeLike, shape: Sequence[int], offset: int) -> onnx.TensorProto:
        proto = onnx.TensorProto(name=name, dims=list(shape), data_location=onnx.TensorProto.EXTERNAL)
        proto.data_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        entries = {"location": self.path.name, "offset": str(offset), "length": str(self.sizes[name])}
        proto.external_data.extend(
            onnx.StringStringEntryProto(key=key, value=value) for key, value in entries.items()
        )
        return proto
