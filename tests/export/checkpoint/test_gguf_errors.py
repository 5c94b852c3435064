"""Every GGUF file that cannot be exported is refused with one clear error before anything is written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gguf_files import write_folder, write_gguf, write_one_tensor
from support.tiny import export_model, tiny_checkpoint

from specdec_onnx.export.checkpoint import Extent, open_checkpoint, require_finished
from specdec_onnx.export.checkpoint.gguf_file import read_header
from specdec_onnx.models.errors import SpecdecError


def refusal(source: Path) -> str:
    """The whole text of the error, after checking that an export of the file leaves nothing behind."""
    out = source.parent / "out"
    before = sorted(source.parent.iterdir())
    with pytest.raises(SpecdecError) as caught:
        export_model(source, out, format="fp32")
    assert sorted(source.parent.iterdir()) == before
    return str(caught.value)


def tiny(folder: Path, family: str = "llama", **how: Any) -> Path:
    return write_gguf(folder / "tiny.gguf", tiny_checkpoint(family), **how)


def test_a_truncated_file_is_told_up_front(tmp_path: Path) -> None:
    file = tiny(tmp_path)
    whole = file.read_bytes()
    start = read_header(file).data_start
    for length in (len(whole) - 1, len(whole) // 2, start + 1, start - 40, start // 2, 200, 24, 16, 8, 6):
        file.write_bytes(whole[:length])
        text = refusal(file)
        assert "incomplete" in text, length
        assert "download it again" in text


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_a_download_that_reserved_its_space_and_broke_off_is_refused(tmp_path: Path, kind: str) -> None:
    model = tiny_checkpoint("llama", intermediate_size=512, vocab_size=1024, tie_word_embeddings=False)
    if kind == "gguf":
        source = file = write_gguf(tmp_path / "tiny.gguf", model)
    else:
        source = write_folder(tmp_path / "tiny", model)
        file = source / "model.safetensors"
    whole = file.read_bytes()
    open_checkpoint(source)
    for missing in (100_001, 200_000, len(whole) // 2):
        file.write_bytes(whole[:-missing] + bytes(missing))
        assert f"{file.name} looks unfinished" in refusal(source)


@pytest.mark.parametrize(
    ("name", "zeros", "fine"),
    [
        ("output.weight", 70_000 - 70_000 % 256, True),
        ("output.weight", 70_100, False),
        ("output.weight", 2**19, False),
        ("blk.0.ffn_up.weight", 70_000 - 70_000 % 256, False),
        ("blk.0.ffn_up.weight", 60_000, True),
    ],
)
def test_padding_rows_of_zeros_in_a_table_of_tokens_are_no_sign_of_that(
    name: str, zeros: int, fine: bool, tmp_path: Path
) -> None:
    file, size = tmp_path / "x.gguf", 2**20
    file.write_bytes(b"header" + b"x" * (size - zeros) + bytes(zeros) + b"behind")
    extents = [Extent("other", 6, 9, 1), Extent(name, 6, 6 + size, size // 256)]
    if fine:
        require_finished(file, extents)
    else:
        with pytest.raises(SpecdecError, match=f"its last {zeros:,} bytes"):
            require_finished(file, extents)


@pytest.mark.parametrize("content", [b"", b"GG", b"hello, world", b"\x08\0\0\0\0\0\0\0{}      "])
def test_other_files_are_not_gguf(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(content)
    assert "not a GGUF file" in refusal(file)


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_other_versions_and_byte_orders_are_refused(tmp_path: Path, version: int) -> None:
    file = tiny(tmp_path)
    file.write_bytes(b"GGUF" + version.to_bytes(4, "little") + file.read_bytes()[8:])
    assert f"GGUF version {version}" in refusal(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.gguf")


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    text = refusal(tiny(tmp_path, metadata={"general.architecture": "mamba"}))
    assert "mamba" in text
    assert "llama, olmo2, phi3, qwen2" in text


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.1.ffn_gate.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    assert f"no tensor {name}" in refusal(tiny(tmp_path, without=[name]))


def test_a_missing_bias_of_a_family_that_has_them(tmp_path: Path) -> None:
    name = "blk.0.attn_v.bias"
    assert f"no tensor {name}" in refusal(tiny(tmp_path, "qwen2", without=[name]))


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.layer_norm_rms_epsilon"])
def test_missing_metadata_is_named(tmp_path: Path, key: str) -> None:
    text = refusal(tiny(tmp_path, without=[f"llama.{key}"]))
    assert f"llama.{key} is missing" in text


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("llama.block_count", "many", "is many"),
        ("llama.block_count", 0, "is 0"),
        ("llama.block_count", 4_000_000_000, "no tensor blk.2.attn_norm.weight"),
        ("llama.attention.head_count", [4, 2], "is [4, 2]"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "is nan"),
        ("llama.expert_count", 8, "mixtures of experts"),
        ("llama.rope.dimension_count", 8, "not the head size 16"),
        ("llama.rope.scaling.type", "longrope", "linear and yarn are supported"),
        ("llama.rope.scaling.type", "linear", "rope.scaling.factor is missing"),
        ("llama.rope.scaling.yarn_log_multiplier", 0.1, "yarn_log_multiplier is not understood"),
        ("llama.feed_forward_length", 100, "its metadata says [100, 64]"),
        ("tokenizer.ggml.model", "llama", "no usable tokenizer.ggml.scores"),
        ("tokenizer.ggml.model", "t5", "kind 't5'"),
        ("tokenizer.ggml.pre", "bloom", "qwen2, qwen35, refact, seed-coder, smaug-bpe, smollm"),
        ("tokenizer.ggml.token_type", [1, 1], "does not match"),
        ("tokenizer.ggml.merges", ["q zz"], "'zz'"),
    ],
)
def test_unusable_metadata_is_named(tmp_path: Path, key: str, value: Any, said: str) -> None:
    assert said in refusal(tiny(tmp_path, metadata={key: value}))


@pytest.mark.parametrize("key", ["model", "tokens", "token_type", "merges"])
def test_missing_tokenizer_metadata_is_named(tmp_path: Path, key: str) -> None:
    assert "tokenizer of tiny.gguf" in refusal(tiny(tmp_path, without=[f"tokenizer.ggml.{key}"]))


def test_more_tokens_than_embeddings_are_refused(tmp_path: Path) -> None:
    tokens = [f"t{index}" for index in range(400)]
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 400}
    assert "400 tokens" in refusal(tiny(tmp_path, metadata=metadata))


def test_unknown_tensors_are_refused(tmp_path: Path) -> None:
    extra = {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}
    assert "attn_q_norm" in refusal(tiny(tmp_path, extra=extra))


def test_an_unsupported_block_type_is_refused(tmp_path: Path) -> None:
    file = tiny(tmp_path)
    raw = file.read_bytes()
    for kind in (GGMLQuantizationType.I32, 40_000):  # a type that is no weight, and one that nobody knows
        file.write_bytes(_with_type(raw, b"blk.0.ffn_up.weight", int(kind)))
        text = refusal(file)
        assert "ffn_up" in text
        assert "I32" in text or "40000" in text
        assert "Q4_K" in text


def _with_type(raw: bytes, name: bytes, kind: int) -> bytes:
    """The tensor's entry is its name, the number of axes, two lengths of eight bytes, and the type."""
    at = raw.index(name) + len(name) + 4 + 16
    return raw[:at] + kind.to_bytes(4, "little") + raw[at + 4 :]


def test_reading_an_absent_tensor_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="no tensor lm_head"):
        open_checkpoint(tiny(tmp_path)).tensor("lm_head.weight")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("sound"))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_headers_never_end_in_a_traceback(
    tmp_path: Path, sound: Path, changes: list[tuple[int, int]]
) -> None:
    raw = bytearray(sound.read_bytes())
    for where, value in changes:
        raw[where % read_header(sound).data_start] = value
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(raw)
    try:
        read = open_checkpoint(damaged)
        read.write_tokenizer(tmp_path)
    except SpecdecError as error:
        assert error.what


def test_a_part_of_a_split_file_under_another_name(tmp_path: Path) -> None:
    text = refusal(tiny(tmp_path, metadata={"split.count": 2, "split.no": 0}))
    assert "part 0 (from 0) of 2" in text
    assert "keep the parts' original names" in text


def test_an_empty_tensor_is_refused(tmp_path: Path) -> None:
    file = write_one_tensor(tmp_path / "x.gguf", np.zeros((0, 32), np.float32), GGMLQuantizationType.F32)
    assert "empty" in refusal(file)
