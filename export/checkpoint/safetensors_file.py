"""One safetensors file: eight bytes of header length, a JSON header, the data. Nothing is ever unpickled."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError

_ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class StoredArray:
    """Where a tensor lies in a file; `offset` is absolute."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def values(self) -> NDArray[np.float32]:
        """All values as float32; SpecdecError if they are no floats of 16 bits or more."""
        if self.dtype == "BF16":
            return _widened(self._read("<u2")).reshape(self.shape)
        if self.dtype not in _FLOATS:
            raise SpecdecError(
                f"{self.path.name} stores {self.name} as {self.dtype}",
                "only F32, F16, BF16 and F64 weights are read",
                "take the model's unquantized checkpoint",
            )
        return self._read(_FLOATS[self.dtype]).astype(np.float32, copy=False).reshape(self.shape)

    def _read(self, dtype: str) -> NDArray[Any]:
        return np.fromfile(self.path, dtype, prod(self.shape), offset=self.offset)


def read_safetensors(path: Path) -> dict[str, StoredArray]:
    """The tensors of one file, each checked to lie inside it; SpecdecError if missing or damaged."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise _damaged(path, "its header is cut off or no safetensors header")
            header = json.loads(file.read(length))
        return dict(_located(path, header, 8 + length, size))
    except OSError as error:
        raise SpecdecError(f"cannot read {path}", error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, "its header is no safetensors header") from None


def _located(
    path: Path, header: Mapping[str, Any], start: int, size: int
) -> Iterator[tuple[str, StoredArray]]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        (first, last), shape = map(int, entry["data_offsets"]), tuple(map(int, entry["shape"]))
        if not 0 <= first <= last or min(shape, default=0) < 0:
            raise _damaged(path, f"{name} has impossible offsets")
        if start + last > size:
            raise _damaged(path, f"{name} ends at byte {start + last:,} but the file has {size:,}")
        width = _ITEM_BYTES.get(entry["dtype"])
        if width and prod(shape) * width != last - first:
            raise _damaged(
                path, f"{name} has {last - first:,} bytes, not what {entry['dtype']} {list(shape)} takes"
            )
        yield name, StoredArray(path, name, entry["dtype"], shape, start + first)


def _widened(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 is the upper half of float32."""
    words = np.empty(halves.shape, np.uint32)
    np.left_shift(halves, 16, out=words, dtype=np.uint32)
    return words.view(np.float32)


def _damaged(path: Path, why: str) -> SpecdecError:
    return SpecdecError(f"{path.name} is damaged or incomplete", why, "download it again")
