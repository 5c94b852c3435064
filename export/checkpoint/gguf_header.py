"""The header of a GGUF file, parsed into plain Python values (format: ggml's docs/gguf.md)."""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specdec_onnx.models.errors import SpecdecError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MOST_AXES = 4


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the header lists it: `offset` counts from the data's start, `shape` is outermost first."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True)
class Header:
    """Everything before the data."""

    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_start: int
    file_bytes: int


class _Damaged(Exception):
    """The bytes make no sense here; the message says which."""


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.size = data, 0, len(data)

    def skip(self, count: int) -> int:
        start = self.at
        if count > self.size - start:
            raise _Damaged(f"its header goes on past the file's end, at byte {self.size:,}")
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
            "only little-endian files of version 2 and 3 are read",
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
