"""Linear layers of a traced graph are replaced, everything else stays as it was."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from specdec_onnx.export.portable import rewrite_linears
from specdec_onnx.export.quantization.linear import parse_format
from specdec_onnx.models.errors import SpecdecError


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """Two linear layers, one shared tensor, and a product of two activations."""
    random = np.random.default_rng(1)
    stored = {
        "first": random.standard_normal((64, 128)).astype(np.float32),
        "second": random.standard_normal((128, 64)).astype(np.float32),
        "row": random.standard_normal(64).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["wide"]),
        helper.make_node("Relu", ["wide"], ["bent"]),
        helper.make_node("MatMul", ["bent", "second"], ["narrow"]),
        helper.make_node("Add", ["narrow", "row"], ["moved"]),
        helper.make_node("Transpose", ["moved"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["moved", "turned"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "traced",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", "length"])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    path = tmp_path / "traced.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def outputs(path: Path) -> Any:
    x = np.random.default_rng(2).standard_normal((1, 5, 64)).astype(np.float32)
    return ort.InferenceSession(str(path)).run(None, {"x": x})[0]


@pytest.mark.parametrize(("format", "error"), [("fp32", 1e-6), ("int8", 0.03), ("w8a8", 0.05), ("int4", 0.3)])
def test_linear_layers_are_replaced_and_the_rest_stays(
    traced: Path, tmp_path: Path, format: str, error: float
) -> None:
    (tmp_path / "out").mkdir()
    sizes = rewrite_linears(traced, tmp_path / "out", parse_format(format))
    expected, found = outputs(traced), outputs(tmp_path / "out" / "model.onnx")
    assert np.linalg.norm(found - expected) < error * np.linalg.norm(expected)
    assert {"wide.weight", "narrow.weight"} <= sizes.keys()
    assert not sizes.keys() & {"first", "second"}
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    assert graph.opset_import[0].version == 18
    assert "y" in [node.output[0] for node in graph.graph.node if node.op_type == "MatMul"]


def test_without_the_extra_the_portable_graph_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.tiny import export_model, tiny_checkpoint

    monkeypatch.setitem(sys.modules, "optimum.exporters.onnx", None)
    with pytest.raises(SpecdecError, match="optimum extra") as caught:
        export_model(tiny_checkpoint(), tmp_path / "out", graph="portable")
    assert "specdec-onnx[optimum]" in str(caught.value)
    assert not (tmp_path / "out").exists()
