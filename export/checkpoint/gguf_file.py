"""A GGUF file: its header as plain values, its tensors read one at a time by offset.

The format is described in ggml's docs/gguf.md. The `gguf` package dequantizes; its reader is not used, as it
makes one array per token of the vocabulary (16 s and 0.5 GB where this takes half a second).
"""

import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import Q4_K, dequantize
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint import Extent, require_finished
from specdec_onnx.export.quantization.linear import Blocks
from specdec_onnx.models.errors import SpecdecError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MOST_AXES = 4

READABLE = frozenset(
    "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS".split()  # noqa: SIM905
)
_CHUNK = 2**20  # elements dequantized at once: the temporary arrays stay small

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class StoredTensor:
    """Where and how a file stores a tensor; `shape` has the outermost axis first, as in numpy."""

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
    """The metadata of one GGUF file, and where its tensors are."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read a file's header and check that every tensor it lists is inside it and written; SpecdecError otherwise."""
    header = read_header(path)
    tensors = {tensor.name: tensor for tensor in _located(path, header)}
    extents = [
        Extent(tensor.name, tensor.offset, tensor.offset + tensor.rows * tensor.row_bytes, tensor.rows)
        for tensor in tensors.values()
    ]
    end = max((extent.end for extent in extents), default=0)
    if end > header.file_bytes:
        raise SpecdecError(
            f"{path.name} is incomplete",
            f"its last tensor ends at byte {end:,} but the file has {header.file_bytes:,}",
            "download it again",
        )
    require_finished(path, extents)
    return GgufFile(path, header.metadata, tensors)


def _located(path: Path, header: "Header") -> Iterator[StoredTensor]:
    for tensor in header.tensors:
        kind, offset = _type_of(path, tensor), header.data_start + tensor.offset
        yield StoredTensor(path, tensor.name, tensor.shape, kind.name, offset, _row_bytes(path, tensor, kind))


def _type_of(path: Path, tensor: "TensorInfo") -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType(tensor.type)
    except ValueError:
        raise SpecdecError(
            f"{path.name} stores {tensor.name} in a block type this version does not know",
            f"its number is {tensor.type}",
            f"take a file quantized as one of {', '.join(sorted(READABLE))}",
        ) from None


def _row_bytes(path: Path, tensor: "TensorInfo", kind: GGMLQuantizationType) -> int:
    block, size = GGML_QUANT_SIZES[kind]
    if tensor.shape[-1] % block:
        raise SpecdecError(
            f"{path.name} is damaged",
            f"{tensor.name} has rows of {tensor.shape[-1]} values, not a multiple of {kind.name}'s {block}",
            "download it again",
        )
    return tensor.shape[-1] // block * int(size)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the header lists it: `offset` counts from the data's start, `shape` is outermost first."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True)
class Header:
    """Everything before the tensors' data."""

    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_start: int
    file_bytes: int


class _Damaged(Exception):
    """The header is damaged; the message says how."""


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.size = data, 0, len(data)

    def skip(self, count: int) -> int:
        start = self.at
        if count > self.size - start:
            raise _Damaged(f"its header continues past the file's end, at byte {self.size:,}")
        self.at = start + count
        return start

    def scalar(self, code: str) -> Any:
        return struct.unpack_from("<" + code, self.data, self.skip(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        length = self.scalar("Q")
        start = self.skip(length)
        return self.data[start : start + length].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        return self.array() if kind == _ARRAY else self.scalar(_code(kind))

    def array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        dtype = np.dtype("<" + _code(kind))
        return np.frombuffer(self.data, dtype, count, self.skip(count * dtype.itemsize)).tolist()

    def tensor(self) -> TensorInfo:
        name, axes = self.text(), self.scalar("I")
        if not 1 <= axes <= _MOST_AXES:
            raise _Damaged(f"tensor {name!r} has {axes} axes")
        shape = tuple(self.scalar("Q") for _ in range(axes))[::-1]
        if 0 in shape:
            raise _Damaged(f"tensor {name!r} is empty")
        return TensorInfo(name, shape, self.scalar("I"), self.scalar("Q"))


def read_header(path: Path) -> Header:
    """Parse the header of `path`; SpecdecError if it is missing, not GGUF, of another version, or damaged."""
    try:
        with path.open("rb") as file:
            _require_magic(path, file.read(8))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(_Cursor(data))
    except _Damaged as problem:
        raise SpecdecError(
            f"{path.name} is damaged or incomplete", str(problem), "download it again"
        ) from None
    except OSError as error:
        raise SpecdecError(f"cannot read {path}", error.strerror or str(error)) from None


def _require_magic(path: Path, start: bytes) -> None:
    if start[:4] != b"GGUF":
        raise SpecdecError(
            f"{path.name} is not a GGUF file",
            "it does not begin with the letters GGUF",
            "give a .gguf file or a folder with config.json and safetensors",
        )
    version = int.from_bytes(start[4:], "little")
    if len(start) == 8 and version not in _VERSIONS:
        raise SpecdecError(
            f"{path.name} has GGUF version {version}",
            "only little-endian files of version 2 and 3 are supported",
            "convert the model again with a current llama.cpp",
        )


def _parse(cursor: _Cursor) -> Header:
    cursor.skip(8)
    tensors, entries = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {cursor.text(): cursor.value(cursor.scalar("I")) for _ in range(entries)}
    listed = tuple(cursor.tensor() for _ in range(tensors))
    if len({tensor.name for tensor in listed}) < len(listed):
        raise _Damaged("it lists a tensor twice")
    return Header(metadata, listed, _aligned(cursor.at, metadata.get("general.alignment", 32)), cursor.size)


def _aligned(at: int, alignment: Any) -> int:
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damaged(f"its alignment is {alignment!r}")
    return -(-at // alignment) * alignment


def _code(kind: int) -> str:
    if kind not in _SCALARS:
        raise _Damaged(f"it holds a value of unknown kind {kind}")
    return _SCALARS[kind]


def read_blocks(raw: Bytes, kind: str) -> Blocks:
    """Stored rows [rows, bytes] of one of the BLOCKED types, exactly but for the quotients that zero points are."""
    return BLOCKED[kind](raw)


def _q4_0(raw: Bytes) -> Blocks:
    """Half-precision scale, 16 bytes of nibbles."""
    scales, data = _fields(raw, 2, 16)
    return Blocks(_nibbles(data, 16).view(np.int8) - np.int8(8), _halves(scales))


def _q4_1(raw: Bytes) -> Blocks:
    """Half-precision scale and offset, 16 bytes of nibbles."""
    scales, offsets, data = _fields(raw, 2, 2, 16)
    return Blocks.with_offsets(_nibbles(data, 16), _halves(scales), _halves(offsets), bits=4)


def _q5_0(raw: Bytes) -> Blocks:
    """Half-precision scale, 32 fifth bits, 16 bytes of nibbles."""
    scales, fifths, data = _fields(raw, 2, 4, 16)
    steps = _nibbles(data, 16) | np.unpackbits(fifths, axis=-1, bitorder="little") << np.uint8(4)
    return Blocks(steps.view(np.int8) - np.int8(16), _halves(scales), bits=8)


def _q5_1(raw: Bytes) -> Blocks:
    """Half-precision scale and offset, 32 fifth bits, 16 bytes of nibbles."""
    scales, offsets, fifths, data = _fields(raw, 2, 2, 4, 16)
    steps = _nibbles(data, 16) | np.unpackbits(fifths, axis=-1, bitorder="little") << np.uint8(4)
    return Blocks.with_offsets(steps, _halves(scales), _halves(offsets), bits=8)


def _q8_0(raw: Bytes) -> Blocks:
    """Half-precision scale, then 32 signed bytes."""
    scales, data = _fields(raw, 2, 32)
    return Blocks(np.ascontiguousarray(data).view(np.int8), _halves(scales), bits=8)


def _q4_k(raw: Bytes) -> Blocks:
    """Eight blocks of 32, whose scales and offsets have 6 bits and a common half-precision scale each."""
    scale, offset, packed, data = _fields(raw, 2, 2, 12, 128)
    return _k_blocks(scale, offset, packed, _nibbles(data, 32), bits=4)


def _q5_k(raw: Bytes) -> Blocks:
    """The same with fifth bits: bit i of the 32 bytes belongs to the i-th block of 32."""
    scale, offset, packed, fifths, data = _fields(raw, 2, 2, 12, 32, 128)
    fifth = fifths[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    steps = _nibbles(data, 32) | fifth.reshape(*fifth.shape[:2], 256) << np.uint8(4)
    return _k_blocks(scale, offset, packed, steps, bits=8)


def _k_blocks(scale: Bytes, offset: Bytes, packed: Bytes, steps: Bytes, bits: int) -> Blocks:
    rows = len(steps)
    parts = Q4_K.get_scale_min(np.ascontiguousarray(packed).reshape(-1, 12))
    scales, offsets = (
        (_halves(common)[..., None] * part.reshape(rows, -1, 8)).reshape(rows, -1)
        for common, part in zip((scale, offset), parts, strict=True)
    )
    return Blocks.with_offsets(steps.reshape(rows, -1, 32), scales, -offsets, bits)


def _q6_k(raw: Bytes) -> Blocks:
    """Sixteen blocks of 16: nibbles, upper pairs of bits, 8-bit scales, and a half-precision scale for these."""
    lower, upper, parts, scale = _fields(raw, 128, 64, 16, 2)
    rows = len(raw)
    pairs = upper.reshape(rows, -1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    steps = _nibbles(lower, 64).reshape(pairs.shape) | pairs << 4
    levels = steps.reshape(rows, -1, 16).view(np.int8) - np.int8(32)
    scales = _halves(scale)[..., None] * np.ascontiguousarray(parts).view(np.int8)
    return Blocks(levels, scales.reshape(rows, -1), bits=8)


def _fields(raw: Bytes, *sizes: int) -> list[Bytes]:
    """The fields of each block, of so many bytes: [rows, blocks, bytes] each."""
    return np.split(raw.reshape(len(raw), -1, sum(sizes)), np.cumsum(sizes)[:-1], axis=2)


def _halves(field: Bytes) -> NDArray[np.float32]:
    return np.ascontiguousarray(field).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(data: Bytes, run: int) -> Bytes:
    """Of every `run` bytes first the lower halves, then the upper: [rows, blocks, 2 · bytes]."""
    runs = data.reshape(*data.shape[:2], -1, run)
    return np.concatenate([runs & 15, runs >> 4], axis=3).reshape(*data.shape[:2], -1)


BLOCKED: Mapping[str, Callable[[Bytes], Blocks]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
"""Types whose weights lie at equal steps within a block. Five and six bits are kept in eight."""
