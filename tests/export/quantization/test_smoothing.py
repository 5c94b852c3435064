"""Smoothing: the float model stays what it was, loud channels stop hurting, and the choice is the measured best."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from support.graphs import GraphRunner
from support.reference import reference_logits
from support.tiny import TinyCheckpoint, export_model, tiny_checkpoint

from specdec_onnx.export.checkpoint.weights import Layer, Weights
from specdec_onnx.export.cli import build_parser
from specdec_onnx.export.graph.architecture import read_architecture
from specdec_onnx.export.graph.transformer import LayerBuilder
from specdec_onnx.export.quality.float_model import FedGraph, FloatModel
from specdec_onnx.export.quality.measure import compare, text_tokens
from specdec_onnx.export.quality.report import read_report
from specdec_onnx.export.quantization import calibration, linear
from specdec_onnx.export.quantization.calibration import CalibratedWeights
from specdec_onnx.export.quantization.linear import Int4, RowwiseInt8
from specdec_onnx.export.quantization.smoothing import best_smoothing
from specdec_onnx.models.folder import open_model

Array = NDArray[np.float32]
TOKENS = np.random.default_rng(3).integers(0, 380, (3, 40))
FORMATS = [RowwiseInt8(), Int4(4, 32)]


def random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def loud_checkpoint(family: str = "qwen2", **sizes: Any) -> TinyCheckpoint:
    """A few channels of every norm, and of each gated product, far above the others."""
    checkpoint = tiny_checkpoint(family, seed=4, **sizes)
    for name, values in checkpoint.tensors.items():
        if "layernorm" in name:
            values[[3, 17, 40]] *= 40
        elif "proj" in name and "bias" not in name and "o_proj" not in name and "down" not in name:
            values[:, [3, 17, 40]] /= 40
        if "up_proj.weight" in name:
            values[[5, 50]] *= 30
        elif "down_proj.weight" in name:
            values[:, [5, 50]] /= 30
    return checkpoint


def run(model: FloatModel, weights: Weights, tokens: NDArray[np.int64]) -> Array:
    """Hidden states after all layers, and the final norm's weight and head applied by hand."""
    x = weights.embedding()[tokens]
    residual = np.zeros_like(x)
    for index in range(2):
        x, residual, _ = model.layer(weights.layer(index), x, residual)
    total = x + residual
    norm, head = weights.final_norm(), weights.head()
    unit = total / np.sqrt(np.mean(total**2, axis=-1, keepdims=True) + 1e-6)
    return unit * norm @ head.T


@pytest.mark.parametrize("format", FORMATS, ids=["w8a8", "int4"])
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": False, "hidden_size": 128, "num_attention_heads": 8}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    ],
)
def test_folding_changes_nothing_in_float(format: Any, family: str, sizes: dict[str, Any]) -> None:
    checkpoint = loud_checkpoint(family, **sizes)
    weights = CalibratedWeights(checkpoint, read_architecture(checkpoint.config), format, TOKENS)
    logits = run(FloatModel(checkpoint), weights, TOKENS[:1])[0]
    expected = reference_logits(checkpoint.config, checkpoint.tensors, list(map(int, TOKENS[0])))
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=2e-3)
    assert len(weights.choices) == 2 * 4 + 1
    assert any(choice.rule != "none" for choice in weights.choices.values())
    assert all(choice.after <= choice.before for choice in weights.choices.values())


def test_heads_that_share_a_value_share_its_scales() -> None:
    rows, weight = random(1, 60, 48) * np.linspace(1, 30, 48, dtype=np.float32), random(2, 32, 48)
    scales = best_smoothing(RowwiseInt8(), rows, weight, (3, 8)).scales.reshape(2, 3, 8)
    assert (scales == scales[:, :1]).all()
    assert len(np.unique(scales)) > 8


@pytest.mark.parametrize("format", FORMATS, ids=["w8a8", "int4"])
def test_a_loud_channel_is_made_quiet(format: Any) -> None:
    rows, weight = random(3, 100, 64), random(4, 40, 64)
    rows[:, 7] *= 60
    found = best_smoothing(format, rows, weight)
    assert found.rule != "none"
    assert found.after < 0.5 * found.before
    assert found.scales[7] > 2 * np.median(found.scales)


@pytest.mark.parametrize("rows", [np.zeros((20, 16)), np.ones((1, 16)), np.eye(16)[:3]])
def test_strange_rows_give_usable_scales(rows: Array) -> None:
    found = best_smoothing(RowwiseInt8(), rows.astype(np.float32), random(5, 8, 16))
    assert np.isfinite(found.scales).all() and (found.scales > 0).all()


def test_layers_come_in_order() -> None:
    checkpoint = tiny_checkpoint()
    weights = CalibratedWeights(checkpoint, read_architecture(checkpoint.config), RowwiseInt8(), TOKENS)
    with pytest.raises(ValueError, match="order"):
        weights.layer(1)


def test_a_layer_without_a_norm_before_it_is_left_alone() -> None:
    class Bare(Weights):
        def layer(self, index: int) -> Layer:
            layer = super().layer(index)
            layer.input_norm = layer.post_norm = None
            return layer

    class BareCalibrated(CalibratedWeights, Bare):
        pass

    checkpoint = loud_checkpoint()
    architecture = read_architecture(checkpoint.config)
    weights = BareCalibrated(checkpoint, architecture, RowwiseInt8(), TOKENS)
    weights.embedding()
    smoothed, bare = weights.layer(0), Bare(checkpoint, architecture).layer(0)
    assert smoothed.input_norm is None
    queries = architecture.heads * architecture.head_dim
    np.testing.assert_array_equal(smoothed.qkv[:queries], bare.qkv[:queries])
    assert weights.choices["layer.0.qkv"].rule == "none"
    graph = FedGraph()
    graph.feed("x", weights._x)
    assert LayerBuilder(graph, architecture, RowwiseInt8(), 40).norm("x", "", None, "nothing") == ("x", "x")


def test_smoothing_is_the_default_and_brings_the_export_closer(tmp_path: Path) -> None:
    checkpoint = loud_checkpoint()
    reference = export_model(checkpoint, tmp_path / "fp32", format="fp32")
    logits = GraphRunner(reference).logits(text_tokens(open_model(reference), 120))
    for format in ("w8a8", "int4"):
        smooth = export_model(checkpoint, tmp_path / format, format=format)
        plain = export_model(checkpoint, tmp_path / f"{format}-plain", format=format, smooth=False)
        near, far = (compare(logits, open_model(folder)).kl_mean for folder in (smooth, plain))
        assert near < 0.6 * far
        assert "calibration" not in read_report(plain)
        found = read_report(smooth)["calibration"]
        assert sum(found["rules"].values()) == 9
        assert set(found["error"]) == {"qkv", "output", "gate_up", "down", "head"}
        assert json.loads((smooth / "specdec.json").read_text())["calibration"] == found


def test_layers_that_stay_bad_keep_float_activations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = loud_checkpoint()
    choices = CalibratedWeights(checkpoint, read_architecture(checkpoint.config), RowwiseInt8(), TOKENS)
    assert choices.float_activations == []
    reference = export_model(checkpoint, tmp_path / "fp32", format="fp32")
    logits = GraphRunner(reference).logits(text_tokens(open_model(reference), 120))
    found = {}
    for name, tolerated in (("none", 1.0), ("all", 0.0)):
        monkeypatch.setattr(linear, "TOLERATED_ERROR", tolerated)
        folder = export_model(checkpoint, tmp_path / name)
        products = [node.op_type for node in onnx.load(folder / "onnx/model.onnx").graph.node]
        in_float = read_report(folder)["calibration"].get("float_activations", [])
        found[name] = [products.count(kind) for kind in ("MatMulIntegerToFloat", "MatMulNBits")]
        found[name] += [len(in_float), compare(logits, open_model(folder)).kl_mean]
    assert found["none"][:3] == [9, 0, 0]
    assert found["all"][:3] == [0, 9, 9]
    assert found["all"][3] < found["none"][3]


def test_smoothing_can_be_switched_off() -> None:
    assert build_parser().parse_args(["x", "-o", "y", "--no-smoothing"]).no_smoothing
    assert not build_parser().parse_args(["x", "-o", "y"]).no_smoothing


def test_calibration_text_has_code_and_conversations(tmp_path: Path) -> None:
    model = open_model(
        export_model(tiny_checkpoint(max_position_embeddings=4096), tmp_path / "m", format="fp32")
    )
    rows = calibration.segments(model)
    assert rows.shape == (calibration.SEGMENTS, calibration.LENGTH)
    np.testing.assert_array_equal(rows, calibration.segments(model))
    texts = [model.tokenizer.decode(list(map(int, row)), skip_special=False) for row in rows]
    assert "while childpos < endpos:" in texts[0] and "<|im_start|>assistant" in texts[2]


def test_calibration_text_needs_no_library_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(export_model(tiny_checkpoint(), tmp_path / "m", format="fp32"))

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(calibration, "import_module", missing)
    assert calibration.segments(model).shape == (calibration.SEGMENTS, calibration.LENGTH)


def test_a_short_context_shortens_the_texts(tmp_path: Path) -> None:
    folder = export_model(tiny_checkpoint(), tmp_path / "m", context=24)
    assert calibration.segments(open_model(folder)).shape == (calibration.SEGMENTS, 24)
