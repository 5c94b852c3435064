"""Weights, settings and tokenizer files out of Hugging Face folders."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gguf_files import BFLOAT16, write_folder
from support.tiny import export_model, tiny_checkpoint

from specdec_onnx.export.checkpoint import open_checkpoint
from specdec_onnx.export.checkpoint.safetensors import read_safetensors
from specdec_onnx.models.errors import SpecdecError


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_folder_gives_back_the_checkpoint(tmp_path: Path, shards: int, family: str) -> None:
    tiny = tiny_checkpoint(family, tie_word_embeddings=False)
    read = open_checkpoint(write_folder(tmp_path / "tiny", tiny, shards=shards))
    assert read.config == tiny.config
    assert read.names() == tiny.names()
    for name in read.names():
        assert read.shape(name) == tiny.shape(name)
        assert np.array_equal(read.tensor(name), tiny.tensor(name)), name


@pytest.mark.parametrize(
    ("dtype", "said"), [(np.float16, "F16"), (BFLOAT16, "BF16"), (np.float64, "F64"), (np.float32, "F32")]
)
def test_every_float_type_is_widened(tmp_path: Path, dtype: Any, said: str) -> None:
    tiny = tiny_checkpoint()
    read = open_checkpoint(write_folder(tmp_path / "tiny", tiny, dtype))
    for name in read.names():
        expected = tiny.tensor(name).astype(dtype).astype(np.float32)
        assert read.tensor(name).dtype == np.float32
        assert np.array_equal(read.tensor(name), expected)
        assert read._find(name).dtype == said


def test_bfloat16_keeps_infinities_and_signs(tmp_path: Path) -> None:
    tiny = tiny_checkpoint()
    odd = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-40, 3.3e38], np.float32)
    tiny.tensors["model.norm.weight"][: len(odd)] = odd
    read = open_checkpoint(write_folder(tmp_path / "tiny", tiny, BFLOAT16)).tensor("model.norm.weight")
    expected = tiny.tensors["model.norm.weight"].astype(BFLOAT16).astype(np.float32)
    assert np.array_equal(read, expected, equal_nan=True)
    assert np.signbit(read[3])


def test_tokenizer_files_are_copied_as_they_are(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", tiny_checkpoint())
    (folder / "special_tokens_map.json").write_text('{"x":  1}')
    (tmp_path / "out").mkdir()
    open_checkpoint(folder).write_tokenizer(tmp_path / "out")
    copied = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert copied == {name: (folder / name).read_bytes() for name in copied}
    assert {"tokenizer.json", "chat_template.jinja", "special_tokens_map.json"} <= copied.keys()
    assert "config.json" not in copied


@pytest.mark.parametrize("scaled", [False, True])
def test_rope_parameters_of_newer_configs(tmp_path: Path, scaled: bool) -> None:
    tiny = tiny_checkpoint("llama")
    rope = {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0} if scaled else {"rope_theta": 5e5}
    del tiny.config["rope_theta"]
    tiny.config["rope_parameters"] = rope
    config = open_checkpoint(write_folder(tmp_path / "tiny", tiny)).config
    assert config["rope_theta"] == 5e5
    assert config["rope_scaling"] == ({"rope_type": "linear", "factor": 2.0} if scaled else None)


def test_a_copy_of_a_tied_head_is_not_a_tensor_of_its_own(tmp_path: Path) -> None:
    tiny = tiny_checkpoint(tie_word_embeddings=False)
    tiny.config["tie_word_embeddings"] = True
    assert "lm_head.weight" not in open_checkpoint(write_folder(tmp_path / "a", tiny)).names()
    del tiny.config["tie_word_embeddings"]
    config = open_checkpoint(write_folder(tmp_path / "b", tiny)).config
    assert config["tie_word_embeddings"] is False


def test_the_source_covers_all_shards(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", tiny_checkpoint(), shards=2)
    source = open_checkpoint(folder).source
    shards = sorted(folder.glob("*.safetensors"))
    assert (source.name, source.file) == ("tiny", "tiny")
    assert source.parts == tuple(shards)
    before = source.sha256
    content = shards[1].read_bytes()
    shards[1].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert open_checkpoint(folder).source.sha256 != before


def test_a_folder_exports_to_a_model(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", tiny_checkpoint(), BFLOAT16, shards=2)
    out = export_model(folder, tmp_path / "out", format="fp32")
    assert json.loads((out / "config.json").read_text())["model_type"] == "qwen2"


def refusal(source: Path) -> str:
    """The whole text of the error, after checking that an export of the folder leaves nothing behind."""
    before = sorted(source.parent.iterdir())
    with pytest.raises(SpecdecError) as caught:
        export_model(source, source.parent / "out", format="fp32")
    assert sorted(source.parent.iterdir()) == before
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "tiny", tiny_checkpoint(), shards=2)


FIRST = "model-00001-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", FIRST])
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"no {name}" in refusal(folder)


def test_no_weights_at_all(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", tiny_checkpoint())
    (folder / "model.safetensors").unlink()
    assert "no model*.safetensors" in refusal(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    text = refusal(folder)
    assert "pytorch_model.bin is a pickle" in text
    assert "convert the model to safetensors" in text


def test_a_pickle_itself_is_not_opened(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    file.write_bytes(b"\x80\x02}q\x00.")
    assert "is a pickle" in refusal(file)


def test_the_weights_alone_are_not_a_model(folder: Path) -> None:
    assert f"give its folder: {folder}" in refusal(folder / FIRST)


def test_a_tensor_that_its_shard_lacks(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.extra.weight"] = FIRST
    (folder / INDEX).write_text(json.dumps(index))
    assert f"no tensor model.extra.weight in {FIRST}" in refusal(folder)


@pytest.mark.parametrize("name", ["../tiny/" + FIRST, "/etc/passwd", "sub/x.safetensors", "model.bin"])
def test_an_index_cannot_leave_the_folder(folder: Path, name: str) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    assert "outside the folder" in refusal(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {}}', "\xff"])
def test_an_index_that_makes_no_sense(folder: Path, content: str) -> None:
    (folder / INDEX).write_text(content, encoding="latin-1")
    assert INDEX in refusal(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", "{"])
def test_a_config_that_makes_no_sense(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    assert "config.json" in refusal(folder)


def test_a_quantized_checkpoint(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {
        "quantization_config": {"quant_method": "awq"}
    }
    (folder / "config.json").write_text(json.dumps(config))
    assert "already quantized (awq)" in refusal(folder)


def test_a_quantization_of_no_known_kind(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": 5}
    (folder / "config.json").write_text(json.dumps(config))
    assert "already quantized" in refusal(folder)


def test_a_shard_may_end_with_a_number_of_no_axes(tmp_path: Path) -> None:
    entries = {
        "x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "y": {"dtype": "F32", "shape": [], "data_offsets": [8, 12]},
    }
    (tmp_path / "model.safetensors").write_bytes(_shard(entries, b"1" * 12))
    assert read_safetensors(tmp_path / "model.safetensors")["y"].values().shape == ()


def test_a_truncated_shard(folder: Path) -> None:
    whole = (folder / FIRST).read_bytes()
    for length in (0, 4, 8, 100, len(whole) - 1):
        (folder / FIRST).write_bytes(whole[:length])
        text = refusal(folder)
        assert f"{FIRST} is damaged or incomplete" in text, length


def _shard(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"not safetensors at all, but long enough",
        _shard([]),
        _shard({"x": 3}),
        _shard({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}),
        _shard({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, bytes(8)),
        _shard({"x": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}),
        _shard({"x": {"dtype": "F32", "shape": ["two"], "data_offsets": [0, 8]}}, bytes(8)),
        _shard({"x": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, bytes(8)),
    ],
)
def test_a_damaged_shard(folder: Path, content: bytes) -> None:
    (folder / FIRST).write_bytes(content)
    assert f"{FIRST} is damaged or incomplete" in refusal(folder)


def test_weights_that_are_not_floats(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", tiny_checkpoint(), np.int8)
    assert "as I8" in refusal(folder)


def test_a_tensor_asked_for_but_not_there(folder: Path) -> None:
    with pytest.raises(SpecdecError, match="no tensor nothing"):
        open_checkpoint(folder).shape("nothing")
