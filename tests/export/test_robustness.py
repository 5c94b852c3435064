"""What goes wrong outside the program: full disks, folders that may not be written, damaged weights."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.tiny import export_model, tiny_checkpoint

from specdec_onnx.export.quality import measure
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: writes fail as on a full disk."""
    resource = pytest.importorskip("resource")
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


@pytest.mark.parametrize("format", ["w8a8", "int4", "fp32"])
def test_a_disk_that_fills_up_while_weights_are_written(format: str, tmp_path: Path) -> None:
    with files_up_to(40_000), pytest.raises(SpecdecError, match="free space"):
        export_model(tiny_checkpoint(), tmp_path / "model", format=format)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_later_leaves_a_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(measure, "try_out", full)
    with pytest.raises(SpecdecError, match="is complete"):
        export_model(tiny_checkpoint(), tmp_path / "model", format="fp32", measure=True)
    assert open_model(tmp_path / "model").facts["format"] == "fp32"


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="permissions bind everyone but the administrator"
)
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(SpecdecError, match="cannot write"):
            export_model(tiny_checkpoint(), tmp_path / "model")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.1.self_attn.v_proj.bias",
        "model.norm.weight",
        "lm_head.weight",
    ],
)
def test_weights_that_are_not_numbers_are_refused(name: str, value: float, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tie_word_embeddings=False)
    checkpoint.tensors[name].flat[5] = value
    with pytest.raises(SpecdecError, match=name):
        export_model(checkpoint, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
