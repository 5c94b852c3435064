"""Graphs that cannot verify drafts exactly are refused, with the reason."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.model.signature import Signature, read_signature

PAST = {"past_key_values.0.key": [1, 2, "past", 16], "past_key_values.0.value": [1, 2, "past", 16]}


def session(inputs: dict[str, list[object]], logits: list[object]) -> SimpleNamespace:
    def node(name: str, shape: list[object]) -> SimpleNamespace:
        return SimpleNamespace(name=name, shape=shape, type="tensor(float)")

    return SimpleNamespace(
        get_inputs=lambda: [node(name, shape) for name, shape in inputs.items()],
        get_overridable_initializers=list,
        get_outputs=lambda: [node("logits", logits)],
    )


def read(
    tmp_path: Path,
    *,
    logits: list[object],
    operators: str = "",
    config: dict[str, object] | None = None,
    **more: list[object],
) -> Signature:
    graph = tmp_path / "model.onnx"
    graph.write_text(f"Gather MatMul {operators}")
    inputs: dict[str, list[object]] = {"input_ids": [1, "s"], "attention_mask": [1, "t"], **PAST, **more}
    return read_signature(session(inputs, logits), graph, columns=99, config=config)


def cached(*shapes: list[object]) -> dict[str, list[object]]:
    return {f"past_key_values.{layer}.key": shape for layer, shape in enumerate(shapes)}


def test_sizes_are_read_from_the_session(tmp_path: Path) -> None:
    signature = read(tmp_path, logits=[1, "s", 384], operators="GroupQueryAttention")
    assert (signature.columns, signature.cache_heads, signature.cache_width) == (384, 2, 16)
    assert signature.caches == ("0.key", "0.value")
    assert signature.shares_buffer
    assert not read(tmp_path, logits=[1, "s", "v"]).shares_buffer
    assert read(tmp_path, logits=[1, "s", "v"]).columns == 99


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"head_dim": 16, "hidden_size": 999, "num_attention_heads": 3}, (2, 16)),
        ({"hidden_size": 64, "num_attention_heads": 4}, (2, 16)),
        ({"head_dim": 8, "num_key_value_heads": 5}, (2, 8)),
    ],
)
@pytest.mark.parametrize("symbol", ["kv_cache_dim", None])
def test_a_symbolic_width_is_read_from_the_config(
    tmp_path: Path, config: dict[str, object], size: tuple[int, int], symbol: str | None
) -> None:
    shape = {f"past_key_values.0.{kind}": ["batch", 2, "past", symbol] for kind in ("key", "value")}
    signature = read(tmp_path, logits=[1, "s", 384], config=config, **shape)
    assert (signature.cache_heads, signature.cache_width) == size


def test_symbolic_heads_are_read_from_the_config(tmp_path: Path) -> None:
    shape = {f"past_key_values.0.{kind}": ["batch", "heads", "past", 16] for kind in ("key", "value")}
    for said, heads in (
        ({"num_attention_heads": 4}, 4),
        ({"num_attention_heads": 4, "num_key_value_heads": 2}, 2),
    ):
        assert read(tmp_path, logits=[1, "s", 384], config=said, **shape).cache_heads == heads


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([[1, 2, "past", "kv_cache_dim"]], "the width of the model's cache is unknown"),
        ([[1, "heads", "past", 16]], "the heads of the model's cache are unknown"),
        ([[1, 2, 128, 16]], r"\[1, 2, 128, 16\]"),
        ([[4, 2, "past", 16]], "number of tokens so far"),
        ([[1, "past", 32]], "number of tokens so far"),
        ([["batch", 2, "past", 16], ["batch", 4, "past", 16]], "different sizes"),
        ([["batch", 2, "past", 16], ["batch", 2, "past", 32]], "different sizes"),
    ],
)
def test_an_odd_cache_is_refused_with_its_shape(
    tmp_path: Path, shapes: list[list[object]], message: str
) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_text("MatMul")
    inputs: dict[str, list[object]] = {"input_ids": [1, "s"], **cached(*shapes)}
    with pytest.raises(SpecdecError, match=message):
        read_signature(session(inputs, [1, "s", 384]), graph, 384, {})


def test_a_quantized_cache_is_refused_with_its_type(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_text("MatMul")
    opened = session({"input_ids": [1, "s"], **PAST}, [1, "s", 384])
    inputs = opened.get_inputs()
    inputs[1].type = "tensor(uint8)"
    opened.get_inputs = lambda: inputs
    with pytest.raises(SpecdecError, match=r"past_key_values\.0\.key has the type tensor\(uint8\)"):
        read_signature(opened, graph, 384, {})


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
