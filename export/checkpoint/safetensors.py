"""A Hugging Face folder as a checkpoint: config.json, tokenizer.json and one or more safetensors files."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint import (
    PICKLES,
    TOKENIZER_FILES,
    Extent,
    SourceFiles,
    copy_files,
    require_finished,
)
from specdec_onnx.export.workers import run_all
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import section

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
_PIECE = 1 << 21
"""Numbers that a thread reads at a time."""

_INDEX = "model.safetensors.index.json"
_HEAD = "lm_head.weight"


class SafetensorsCheckpoint:
    """A folder with safetensors; opening it checks everything but the values (SpecdecError)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = _config(folder)
        shards, self._tensors = _tensors(folder)
        if self.config.setdefault("tie_word_embeddings", _HEAD not in self._tensors):
            self._tensors.pop(_HEAD, None)  # some files hold the tied head as a copy
        self.source = SourceFiles(_title(folder), _title(folder), shards)
        if not (folder / "tokenizer.json").is_file():
            raise _lacks(folder, "tokenizer.json", "save the fast tokenizer next to the weights")

    def names(self) -> frozenset[str]:
        """Every tensor's name."""
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape [out, in], without reading the data."""
        return self._find(name).shape

    def tensor(self, name: str) -> NDArray[np.float32]:
        """One tensor as float32."""
        return self._find(name).values()

    def write_tokenizer(self, folder: Path) -> None:
        """Copy the tokenizer's files as they are."""
        copy_files((*TOKENIZER_FILES, "chat_template.json", "generation_config.json"), self.folder, folder)

    def _find(self, name: str) -> "StoredArray":
        if name not in self._tensors:
            raise _lacks(self.folder, f"tensor {name}", "download it again, or choose another checkpoint")
        return self._tensors[name]


def _title(folder: Path) -> str:
    """The folder's name; for a snapshot in the hub's own cache, whose folder is named by a hash, the model's."""
    folder = folder.resolve()
    return folder.parent.parent.name.rpartition("--")[2] if folder.parent.name == "snapshots" else folder.name


def _config(folder: Path) -> dict[str, Any]:
    config = _json(folder, "config.json")
    if "model_type" not in config:
        raise SpecdecError(f"{folder / 'config.json'} names no model_type", fix="download it again")
    if config.get("quantization_config"):
        method = section(config, "quantization_config").get("quant_method", "quantized")
        raise SpecdecError(
            f"{folder.name} is already quantized ({method})",
            "quantizing it a second time would lose quality",
            "give the unquantized checkpoint, or a GGUF file",
        )
    return _with_rope(config)


def _with_rope(config: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 keeps rope_theta and scaling in `rope_parameters`; put them where earlier versions had them."""
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        return config
    scaled = rope.get("rope_type", "default") != "default"
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"} if scaled else None
    return {"rope_theta": rope["rope_theta"], "rope_scaling": scaling} | config


def _tensors(folder: Path) -> tuple[tuple[Path, ...], dict[str, "StoredArray"]]:
    if (folder / _INDEX).is_file():
        return _indexed(folder)
    shards = tuple(sorted(folder.glob("model*.safetensors")))
    if not shards:
        raise _no_weights(folder)
    return shards, {name: array for shard in shards for name, array in read_safetensors(shard).items()}


def _indexed(folder: Path) -> tuple[tuple[Path, ...], dict[str, "StoredArray"]]:
    weight_map = _json(folder, _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SpecdecError(f"{folder / _INDEX} has no weight_map", fix="download it again")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise SpecdecError(f"{folder / _INDEX} names a file outside the folder", f"{name!r}")
        if not (folder / name).is_file():
            raise _lacks(folder, name, "download the missing file")
    shards = {name: read_safetensors(folder / name) for name in names}
    for tensor, name in weight_map.items():
        if tensor not in shards[name]:
            raise _lacks(folder, f"tensor {tensor} in {name}", "download that file again")
    return tuple(folder / name for name in names), {
        tensor: shards[name][tensor] for tensor, name in weight_map.items()
    }


def _no_weights(folder: Path) -> SpecdecError:
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        why = f"{pickles[0]} is a pickle, which can run any code when it is loaded"
        return SpecdecError(f"{folder} holds no safetensors", why, "convert the model to safetensors")
    fix = "give a folder with config.json and model.safetensors, or a .gguf file"
    return _lacks(folder, "model*.safetensors", fix)


def _json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise _lacks(folder, name, "give a Hugging Face model folder, or a .gguf file")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise SpecdecError(f"{path} cannot be read", str(error), "download it again") from None
    if not isinstance(value, dict):
        raise SpecdecError(f"{path} is not a JSON object", fix="download it again")
    return value


def _lacks(folder: Path, what: str, fix: str) -> SpecdecError:
    return SpecdecError(f"{folder} cannot be exported", f"it has no {what}", fix)


@dataclass(frozen=True)
class StoredArray:
    """Where a file stores a tensor; `offset` is absolute."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def values(self) -> NDArray[np.float32]:
        """All values as float32; SpecdecError if they are not floats of 16 bits or more."""
        if self.dtype not in {*_FLOATS, "BF16"}:
            raise SpecdecError(
                f"{self.path.name} stores {self.name} as {self.dtype}",
                "only F32, F16, BF16 and F64 weights are supported",
                "take the model's unquantized checkpoint",
            )
        values = np.empty(prod(self.shape), np.float32)

        def fill(first: int) -> None:
            self._read(first, values[first : first + _PIECE])

        run_all(fill, range(0, len(values), _PIECE))
        return values.reshape(self.shape)

    def _read(self, first: int, out: NDArray[np.float32]) -> None:
        """Fill `out` with the numbers from index `first` on; bfloat16 is the upper half of float32."""
        dtype = _FLOATS.get(self.dtype, "<u2")
        offset = self.offset + first * np.dtype(dtype).itemsize
        stored = np.fromfile(self.path, dtype, len(out), offset=offset)
        if self.dtype == "BF16":
            np.left_shift(stored, 16, out=out.view(np.uint32), dtype=np.uint32)
        else:
            out[:] = stored


def read_safetensors(path: Path) -> dict[str, StoredArray]:
    """The tensors of one file, each checked to lie inside it; SpecdecError if missing, damaged or unfinished."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise _damaged(path, "its header is incomplete, or not a safetensors header")
            header = json.loads(file.read(length))
        arrays = dict(_located(path, header, 8 + length, size))
        if last := max(arrays.values(), key=lambda array: array.offset, default=None):
            require_finished(path, [Extent(last.name, last.offset, size, max((1, *last.shape[:1])))])
        return arrays
    except OSError as error:
        raise SpecdecError(f"cannot read {path}", error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, "its header is not a safetensors header") from None


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
                path, f"{name} has {last - first:,} bytes, which does not fit {entry['dtype']} {list(shape)}"
            )
        yield name, StoredArray(path, name, entry["dtype"], shape, start + first)


def _damaged(path: Path, why: str) -> SpecdecError:
    return SpecdecError(f"{path.name} is damaged or incomplete", why, "download it again")
