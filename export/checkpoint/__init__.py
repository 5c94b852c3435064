"""Where weights come from: GGUF files and safetensors folders, read through one protocol."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.quantization.linear import Blocks
from specdec_onnx.export.workers import in_order
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import user_path

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
"""Suffixes of weights that are never read: a pickle can run any code when it is loaded."""


_SUSPICIOUS_ZEROS, _MOST_ZEROS = 2**16, 2**26
_TOKEN_TABLES = ("token_embd.weight", "output.weight", "model.embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True)
class SourceFiles:
    """The files that a model was read from.

    Args:
        name: The model's name, for people.
        file: The file or folder, for the record.
        parts: Every file that holds weights.
        notes: What a user should know about them, a sentence each.
    """

    name: str
    file: str
    parts: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """SHA-256 in hex, read in pieces on first use; of several parts, the digest of their digests."""
        digests = list(in_order(sha256_of, self.parts))
        return digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()


class Checkpoint(Protocol):
    """A model's weights under their Hugging Face names, read one at a time."""

    @property
    def config(self) -> dict[str, Any]:
        """A Hugging Face config.json, with `rope_freq_factors` (a list) where the file holds that tensor."""

    @property
    def source(self) -> SourceFiles:
        """The files it was read from."""

    def names(self) -> frozenset[str]:
        """Every tensor's Hugging Face name, such as `model.layers.0.self_attn.q_proj.weight`."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape in Hugging Face orientation ([out, in] for a linear layer), without reading the data."""

    def tensor(self, name: str) -> NDArray[np.float32]:
        """A copy of one tensor as float32 [out, in]; SpecdecError if the checkpoint lacks it."""

    def write_tokenizer(self, folder: Path) -> None:
        """Write tokenizer.json and, where known, the settings, chat template and generation files."""


@runtime_checkable
class BlockCheckpoint(Checkpoint, Protocol):
    """A checkpoint that may store matrices in blocks of integers."""

    def blocks(self, name: str) -> Blocks | None:
        """A matrix as it is stored, rows in the order of `tensor`; None if its blocks are not of that kind."""

    def sample(self, name: str) -> Blocks | None:
        """One row of these blocks, which shows their kind."""


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open a .gguf file or a folder with safetensors and config.json; SpecdecError if it is neither."""
    path = user_path(source)
    if path.is_dir():
        from specdec_onnx.export.checkpoint.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    if not path.exists():
        raise SpecdecError(f"{path} does not exist", fix="give a .gguf file or a folder with safetensors")
    if path.suffix == ".safetensors":
        raise SpecdecError(f"{path} is only the weights", fix=f"give its folder: {path.parent}")
    if path.suffix in PICKLES:
        why = f"{path.name} is a pickle, which can run any code when it is loaded"
        raise SpecdecError(f"{path} is not supported", why, "convert the model to safetensors")
    from specdec_onnx.export.checkpoint.gguf import GgufCheckpoint

    return GgufCheckpoint(path)


@dataclass(frozen=True)
class Extent:
    """Where a file stores a tensor: its bytes [start, end), in rows of equal size."""

    name: str
    start: int
    end: int
    rows: int


def require_finished(path: Path, tensors: Iterable[Extent]) -> None:
    """Raise SpecdecError if the data ends in a long run of zeros, like a download that reserved its space and broke off.

    Rows of zeros at the end of a table of tokens are padding, if they are few.
    """
    last = max(tensors, key=lambda tensor: tensor.end, default=None)
    zeros = _zeros_before(path, last.end) if last else 0
    if last is None or zeros < _SUSPICIOUS_ZEROS or _is_padding(last, zeros):
        return
    raise SpecdecError(
        f"{path.name} looks unfinished",
        f"{'at least ' * (zeros >= _MOST_ZEROS)}its last {zeros:,} bytes of weights are all zero",
        "download it again; a tool that reserves the space first may have been interrupted",
    )


def _is_padding(tensor: Extent, zeros: int) -> bool:
    """Whether the zeros are whole rows (and the last bytes of a number before them) of a table of tokens."""
    size, row = tensor.end - tensor.start, (tensor.end - tensor.start) // tensor.rows
    return tensor.name in _TOKEN_TABLES and zeros <= size // 8 and zeros % row < 4


def _zeros_before(path: Path, end: int) -> int:
    """How many bytes before `end` are zero, counted up to _MOST_ZEROS."""
    zeros, step = 0, 2**20
    with path.open("rb") as file:
        while zeros < min(end, _MOST_ZEROS):
            count = min(step, end - zeros)
            file.seek(end - zeros - count)
            kept = len(file.read(count).rstrip(b"\0"))
            zeros += count - kept
            if kept:
                break
    return zeros


def copy_files(names: Iterable[str], source: Path, folder: Path) -> None:
    """Copy those of the files that `source` has."""
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
