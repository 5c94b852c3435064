"""A GGUF file as a checkpoint."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint import SourceFiles
from specdec_onnx.export.checkpoint.gguf_config import gguf_config
from specdec_onnx.export.checkpoint.gguf_families import Slot, family_of, slots
from specdec_onnx.export.checkpoint.gguf_file import (
    BLOCKED,
    READABLE,
    GgufFile,
    StoredTensor,
    read_blocks,
    read_gguf,
)
from specdec_onnx.export.checkpoint.gguf_tokenizer import GgufTokenizer
from specdec_onnx.export.quantization.linear import Blocks
from specdec_onnx.models.errors import SpecdecError

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


class GgufCheckpoint:
    """A GGUF file, whole or split, under Hugging Face names.

    Opening it checks everything but the values (SpecdecError).
    """

    def __init__(self, path: Path) -> None:
        self.gguf = read_whole(path)
        self.config: dict[str, Any] = gguf_config(self.gguf)
        name = str(self.gguf.metadata.get("general.name") or path.stem)
        self.source = SourceFiles(name, path.name, parts_of(path))
        self._tensors = dict(self._named())
        self.tokenizer = GgufTokenizer(path.name, self.gguf.metadata, self.config["vocab_size"])
        self.source = replace(self.source, notes=self.tokenizer.notes)

    def names(self) -> frozenset[str]:
        """Every tensor's Hugging Face name."""
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape [out, in], without reading the data."""
        return self._find(name)[0].shape

    def tensor(self, name: str) -> NDArray[np.float32]:
        """One tensor as float32 [out, in], its rotary rows in Hugging Face's order."""
        stored, slot = self._find(name)
        values = stored.dequantized()
        if slot.offset:
            values -= np.float32(slot.offset)
        return split_halves(values, self.config["head_dim"]) if slot.interleaved else values

    def blocks(self, name: str) -> Blocks | None:
        """A matrix as the file stores it, if in blocks of integers, its rotary rows in Hugging Face's order."""
        stored, slot = self._find(name)
        if stored.type not in BLOCKED:
            return None
        blocks = read_blocks(stored.raw(0, stored.rows), stored.type)
        if not slot.interleaved:
            return blocks
        return blocks.rows(split_halves(np.arange(stored.rows), self.config["head_dim"]))

    def sample(self, name: str) -> Blocks | None:
        """One row of these blocks, which shows their kind."""
        stored, _ = self._find(name)
        return read_blocks(stored.raw(0, 1), stored.type) if stored.type in BLOCKED else None

    def write_tokenizer(self, folder: Path) -> None:
        """Rebuild tokenizer.json and the files beside it from the metadata."""
        self.tokenizer.write(folder)

    def _find(self, name: str) -> tuple[StoredTensor, Slot]:
        if name not in self._tensors:
            raise SpecdecError(f"{self.source.file} has no tensor {name}", "models of this family need it")
        return self._tensors[name]

    def _named(self) -> Iterator[tuple[str, tuple[StoredTensor, Slot]]]:
        family, lengths = family_of(self.source.file, self.gguf.metadata), _lengths(self.config)
        unknown = self.gguf.tensors.keys() - family.config_tensors
        for name, slot in slots(family, self.config["num_hidden_layers"]):
            unknown.discard(name)
            stored = self.gguf.tensors.get(name)
            if stored:
                yield slot.name, (self._checked(stored, tuple(lengths[axis] for axis in slot.axes)), slot)
            elif slot.required:
                raise self._problem(f"it has no tensor {name}", "download it again, or choose another file")
        if unknown:
            why = f"it has tensors that its architecture does not define: {', '.join(sorted(unknown)[:3])}"
            raise self._problem(why, "choose a model without them")

    def _checked(self, stored: StoredTensor, shape: tuple[int, ...]) -> StoredTensor:
        if stored.type not in READABLE:
            why = f"{stored.name} is stored as {stored.type}, which is not supported"
            raise self._problem(why, f"take a file quantized as one of {', '.join(sorted(READABLE))}")
        if stored.shape != shape:
            why = f"{stored.name} has shape {list(stored.shape)}, its metadata says {list(shape)}"
            raise self._problem(why, "convert the model again")
        return stored

    def _problem(self, why: str, fix: str) -> SpecdecError:
        return SpecdecError(f"{self.source.file} cannot be exported", why, fix)


def parts_of(path: Path) -> tuple[Path, ...]:
    """All parts of the file that `path` is a part of, in order; `path` alone if its name has no part number."""
    match = _PART.fullmatch(path.name)
    if not match:
        return (path,)
    stem, count = match[1], int(match[3])
    return tuple(path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1))


def read_whole(path: Path) -> GgufFile:
    """Read a file with all its parts; SpecdecError if one is missing or belongs to another model."""
    parts = parts_of(path)
    missing = [part.name for part in parts if not part.is_file()]
    if missing and len(parts) > 1:
        raise SpecdecError(
            f"{path.name} is one of {len(parts)} parts", f"{missing[0]} is missing", "download it too"
        )
    files = [read_gguf(part) for part in parts]
    _require_count(files)
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        if repeated := tensors.keys() & file.tensors.keys():
            raise _mixed(file.path, f"{min(repeated)} is in an earlier part too")
        tensors |= file.tensors
    return GgufFile(parts[0], files[0].metadata, tensors)


def _require_count(files: list[GgufFile]) -> None:
    for number, file in enumerate(files):
        count, own_number = file.metadata.get("split.count", 1), file.metadata.get("split.no", 0)
        if (count, own_number) != (len(files), number):
            raise _mixed(file.path, f"it is labelled part {own_number!r} (from 0) of {count!r}")


def _mixed(path: Path, why: str) -> SpecdecError:
    return SpecdecError(f"{path.name} does not match the other parts", why, "keep the parts' original names")


def split_halves(rows: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Undo llama.cpp's row order along axis 0: in each head 0, d/2, 1, d/2 + 1, ... becomes 0, 1, 2, ..."""
    pairs = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _lengths(config: dict[str, Any]) -> dict[str, int]:
    query, key = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    return {
        "vocab": config["vocab_size"],
        "hidden": config["hidden_size"],
        "head": config["head_dim"],
        "inner": config["intermediate_size"],
        "gate_up": 2 * config["intermediate_size"],
        "query": query,
        "key": key,
        "qkv": query + 2 * key,
    }
