"""A GGUF file: its header as plain values, its tensors read one at a time by offset.

The format is described in ggml's docs/gguf.md. The `gguf` package dequantizes; its reader is not used, as it
makes one array per token of the vocabulary (16 s and 0.5 GB where this takes half a second).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint.gguf_header import Header, TensorInfo, read_header
from specdec_onnx.models.errors import SpecdecError

READABLE = frozenset(
    "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS".split()  # noqa: SIM905
)
_CHUNK = 2**20  # elements dequantized at once: the temporary arrays stay small


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in a file, and how; `shape` has the outermost axis first, as numpy has it."""

    path: Path
    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    row_bytes: int

    @property
    def rows(self) -> int:
        """How many rows of `shape[-1]` values; block types never cross a row."""
        return prod(self.shape[:-1])

    def raw(self, first: int, last: int) -> NDArray[np.uint8]:
        """The stored bytes of rows [first, last), as [rows, bytes]."""
        count, offset = (last - first) * self.row_bytes, self.offset + first * self.row_bytes
        data = np.fromfile(self.path, np.uint8, count, offset=offset)
        return data.reshape(last - first, self.row_bytes)

    def dequantized(self) -> NDArray[np.float32]:
        """All values as float32 in `shape`."""
        values = np.empty((self.rows, self.shape[-1]), np.float32)
        step, kind = max(1, _CHUNK // self.shape[-1]), GGMLQuantizationType[self.type]
        for first in range(0, self.rows, step):
            last = min(first + step, self.rows)
            values[first:last] = dequantize(self.raw(first, last), kind)
        return values.reshape(self.shape)


@dataclass(frozen=True)
class GgufFile:
    """The metadata of one GGUF file and where its tensors lie."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read a file's header and check that every tensor it lists is inside it; SpecdecError otherwise."""
    header = read_header(path)
    tensors = {tensor.name: tensor for tensor in _located(path, header)}
    end = max((tensor.offset + tensor.rows * tensor.row_bytes for tensor in tensors.values()), default=0)
    if end > header.file_bytes:
        raise SpecdecError(
            f"{path.name} is incomplete",
            f"its last tensor ends at byte {end:,} but the file has {header.file_bytes:,}",
            "download it again",
        )
    return GgufFile(path, header.metadata, tensors)


def _located(path: Path, header: Header) -> Iterator[StoredTensor]:
    for tensor in header.tensors:
        kind, offset = _type_of(path, tensor), header.data_start + tensor.offset
        yield StoredTensor(path, tensor.name, tensor.shape, kind.name, offset, _row_bytes(path, tensor, kind))


def _type_of(path: Path, tensor: TensorInfo) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType(tensor.type)
    except ValueError:
        raise SpecdecError(
            f"{path.name} stores {tensor.name} in a block type this version does not know",
            f"its number is {tensor.type}",
            f"take a file quantized as one of {', '.join(sorted(READABLE))}",
        ) from None


def _row_bytes(path: Path, tensor: TensorInfo, kind: GGMLQuantizationType) -> int:
    block, size = GGML_QUANT_SIZES[kind]
    if tensor.shape[-1] % block:
        raise SpecdecError(
            f"{path.name} is damaged",
            f"{tensor.name} has rows of {tensor.shape[-1]} values, not a multiple of {kind.name}'s {block}",
            "download it again",
        )
    return tensor.shape[-1] // block * int(size)
