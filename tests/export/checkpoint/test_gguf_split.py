"""GGUF files in several parts."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.gguf_files import gguf_name, write_gguf
from support.tiny import TinyCheckpoint, tiny_checkpoint

from specdec_onnx.export.checkpoint import open_checkpoint
from specdec_onnx.models.errors import SpecdecError


@pytest.fixture
def tiny() -> TinyCheckpoint:
    return tiny_checkpoint("llama")


@pytest.fixture
def parts(tmp_path: Path, tiny: TinyCheckpoint) -> list[Path]:
    """The tiny model in two parts, each with every second tensor."""
    names = sorted(gguf_name(name, "llama") for name in tiny.names())
    paths = [tmp_path / f"tiny-{number:05}-of-00002.gguf" for number in (1, 2)]
    for number, path in enumerate(paths):
        metadata = {"split.count": 2, "split.no": number}
        write_gguf(path, tiny, metadata=metadata, without=names[1 - number :: 2])
    return paths


@pytest.mark.parametrize("given", [0, 1])
def test_parts_are_read_as_one(parts: list[Path], tiny: TinyCheckpoint, given: int) -> None:
    read = open_checkpoint(parts[given])
    assert read.names() == tiny.names()
    assert all(np.array_equal(read.tensor(name), tiny.tensor(name)) for name in read.names())
    assert read.source.parts == tuple(parts)


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(SpecdecError, match=r"tiny-00002-of-00002\.gguf is missing"):
        open_checkpoint(parts[0])


def test_parts_of_different_models_are_refused(parts: list[Path]) -> None:
    shutil.copyfile(parts[0], parts[1])
    with pytest.raises(SpecdecError, match=r"tiny-00002-of-00002\.gguf does not match"):
        open_checkpoint(parts[0])


def test_a_tensor_in_two_parts_is_refused(parts: list[Path], tiny: TinyCheckpoint) -> None:
    write_gguf(parts[1], tiny, metadata={"split.count": 2, "split.no": 1})
    with pytest.raises(SpecdecError, match="is in an earlier part too"):
        open_checkpoint(parts[0])


def test_a_truncated_part_is_refused(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[1].read_bytes()[:-5])
    with pytest.raises(SpecdecError, match=r"tiny-00002-of-00002\.gguf is incomplete"):
        open_checkpoint(parts[0])
