"""Graphs that cannot verify drafts exactly are refused, with the reason."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.signature import Signature, read_signature

PAST = {"past_key_values.0.key": [1, 2, "past", 16], "past_key_values.0.value": [1, 2, "past", 16]}


def session(inputs: dict[str, list[object]], logits: list[object]) -> SimpleNamespace:
    def node(name: str, shape: list[object]) -> SimpleNamespace:
        return SimpleNamespace(name=name, shape=shape, type="tensor(float)")

    return SimpleNamespace(
        get_inputs=lambda: [node(name, shape) for name, shape in inputs.items()],
        get_overridable_initializers=list,
        get_outputs=lambda: [node("logits", logits)],
    )


def read(tmp_path: Path, *, logits: list[object], operators: str = "", **more: list[object]) -> Signature:
    graph = tmp_path / "model.onnx"
    graph.write_text(f"Gather MatMul {operators}")
    inputs: dict[str, list[object]] = {"input_ids": [1, "s"], "attention_mask": [1, "t"], **PAST, **more}
    return read_signature(session(inputs, logits), graph, columns=99)


def test_sizes_are_read_from_the_session(tmp_path: Path) -> None:
    signature = read(tmp_path, logits=[1, "s", 384], operators="GroupQueryAttention")
    assert (signature.columns, signature.cache_heads, signature.cache_width) == (384, 2, 16)
    assert signature.caches == ("0.key", "0.value")
    assert signature.shares_buffer
    assert not read(tmp_path, logits=[1, "s", "v"]).shares_buffer
    assert read(tmp_path, logits=[1, "s", "v"]).columns == 99


@pytest.mark.parametrize("logits", [[1, 1, 384], [1, 384]])
def test_logits_of_the_last_position_only(tmp_path: Path, logits: list[object]) -> None:
    with pytest.raises(SpecdecError, match="only the last position"):
        read(tmp_path, logits=logits)


@pytest.mark.parametrize("operator", ["DynamicQuantizeLinear", "DynamicQuantizeMatMul"])
def test_rows_that_interact(tmp_path: Path, operator: str) -> None:
    with pytest.raises(SpecdecError, match=r"a drafted token changes the logits of an\s+earlier one"):
        read(tmp_path, logits=[1, "s", 384], operators=operator)


def test_a_recurrent_state_cannot_be_rolled_back(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="past_conv"):
        read(tmp_path, logits=[1, "s", 384], **{"past_conv.0": [1, 64, 4]})


def test_no_cache_at_all(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_text("MatMul")
    with pytest.raises(SpecdecError, match="lacks"):
        read_signature(session({"input_ids": [1, "s"]}, [1, "s", 384]), graph, 99)
