"""Weights and configuration out of GGUF files."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from support.gguf_files import write_gguf, write_one_tensor
from support.tiny import tiny_checkpoint

from specdec_onnx.export.checkpoint import gguf_file, open_checkpoint
from specdec_onnx.export.checkpoint.gguf import split_halves
from specdec_onnx.export.checkpoint.gguf_file import READABLE, read_gguf

SAME = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps")
SAME += (
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rope_theta",
    "bos_token_id",
)
SAME += ("eos_token_id", "tie_word_embeddings", "architectures", "hidden_act")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_float_file_gives_back_the_checkpoint(tmp_path: Path, family: str, tied: bool) -> None:
    tiny = tiny_checkpoint(family, tie_word_embeddings=tied)
    read = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", tiny))
    assert {key: read.config[key] for key in SAME} == {key: tiny.config[key] for key in SAME}
    assert read.names() == tiny.names()
    for name in read.names():
        assert read.shape(name) == tiny.shape(name)
        assert np.array_equal(read.tensor(name), tiny.tensor(name)), name


def test_llama_biases_are_read_and_put_in_order_too(tmp_path: Path) -> None:
    tiny = tiny_checkpoint("llama", attention_bias=True)
    read = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", tiny))
    name = "model.layers.1.self_attn.k_proj.bias"
    assert read.config["attention_bias"]
    assert not read.config["mlp_bias"]
    assert np.array_equal(read.tensor(name), tiny.tensor(name))


def test_a_head_size_of_its_own_is_read(tmp_path: Path) -> None:
    tiny = tiny_checkpoint("llama", head_dim=32)
    read = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", tiny))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert read.config["head_dim"] == 32
    assert np.array_equal(read.tensor(name), tiny.tensor(name))


def test_split_halves_undoes_the_pairs_of_each_head() -> None:
    stored = np.array([0, 2, 1, 3, 10, 12, 11, 13])
    assert split_halves(stored, 4).tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
def test_quantized_files_are_as_near_as_their_block_type(tmp_path: Path, kind: str) -> None:
    tiny, block = tiny_checkpoint("llama"), GGMLQuantizationType[kind]
    read = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", tiny, kind=block))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert read._find(name)[0].type == kind
    expected = dequantize(quantize(tiny.tensor(name), block), block)
    assert np.array_equal(
        read.tensor(name), expected
    )  # rows are whole blocks, so their order does not matter


@pytest.mark.filterwarnings("ignore:invalid value")  # random scales can be NaN or infinite
@pytest.mark.parametrize("kind", sorted(READABLE))
@pytest.mark.parametrize("chunk", [2**20, 512])
def test_every_block_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, chunk: int) -> None:
    monkeypatch.setattr(gguf_file, "_CHUNK", chunk)
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    random = np.random.default_rng(1)
    raw = random.integers(0, 256, (37, 256 // block * size), np.uint8)
    if kind in ("F32", "F16"):
        raw = raw.view(kind.replace("F", "f").replace("32", "4").replace("16", "2"))
    stored = read_gguf(write_one_tensor(tmp_path / "x.gguf", raw, GGMLQuantizationType[kind])).tensors["x"]
    values = stored.dequantized()
    assert values.shape == (37, 256)
    assert values.dtype == np.float32
    expected = dequantize(raw, GGMLQuantizationType[kind])
    assert np.array_equal(values, expected, equal_nan=True)


def test_q8_0_by_hand(tmp_path: Path) -> None:
    """A block is a half-precision scale and 32 signed bytes."""
    levels = np.arange(-16, 16, dtype=np.int8)
    raw = np.concatenate([np.array([0.25], np.float16).view(np.uint8), levels.view(np.uint8)])[None]
    stored = read_gguf(write_one_tensor(tmp_path / "x.gguf", raw, GGMLQuantizationType.Q8_0)).tensors["x"]
    assert np.array_equal(stored.dequantized(), levels[None] * np.float32(0.25))


def rope(tmp_path: Path, **entries: Any) -> dict[str, Any]:
    metadata = {f"llama.rope.{key}": value for key, value in entries.items()}
    return open_checkpoint(
        write_gguf(tmp_path / "x.gguf", tiny_checkpoint("llama"), metadata=metadata)
    ).config


def test_rope_scaling_is_read(tmp_path: Path) -> None:
    assert rope(tmp_path)["rope_scaling"] is None
    assert rope(tmp_path, freq_base=500000.0)["rope_theta"] == 500000.0
    linear = rope(tmp_path, **{"scaling.type": "linear", "scaling.factor": 4.0})
    assert linear["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert rope(tmp_path, scale_linear=2.0)["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}


def test_yarn_is_read(tmp_path: Path) -> None:
    entries = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 128}
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert rope(tmp_path, **entries)["rope_scaling"] == scaling
    more = rope(tmp_path, **entries, **{"scaling.yarn_beta_fast": 16.0, "scaling.attn_factor": 0.5})
    assert more["rope_scaling"]["beta_fast"] == 16.0
    assert more["rope_scaling"]["attention_factor"] == pytest.approx(0.5 * (0.1 * np.log(4.0) + 1))


def test_llama3_factors_are_passed_on(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    file = write_gguf(tmp_path / "x.gguf", tiny_checkpoint("llama"), extra={"rope_freqs.weight": factors})
    read = open_checkpoint(file)
    assert read.config["rope_freq_factors"] == factors.tolist()
    assert "rope_freqs.weight" not in read.names()


def test_the_source_is_named_and_hashed(tmp_path: Path) -> None:
    metadata = {"general.name": "Tiny One"}
    file = write_gguf(tmp_path / "tiny.gguf", tiny_checkpoint(), metadata=metadata)
    source = open_checkpoint(str(file)).source
    assert (source.name, source.file, source.parts) == ("Tiny One", "tiny.gguf", (file,))
    assert source.sha256 == sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_another_alignment_is_followed(tmp_path: Path, alignment: int) -> None:
    tiny = tiny_checkpoint()
    read = open_checkpoint(write_gguf(tmp_path / "x.gguf", tiny, alignment=alignment))
    assert all(np.array_equal(read.tensor(name), tiny.tensor(name)) for name in read.names())
