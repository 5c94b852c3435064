"""Which nodes become one, and that the rest of the file stays as it is."""

from pathlib import Path

import onnx
import pytest
from support.matmulnbits import Product, gated_model_of, model_of
from support.tiny import export_tiny, tiny_config

from specdec_onnx.models.folder import open_model
from specdec_onnx.models.graph_fusion import with_gated_products

GATED = Product(128, 64, zeros="packed", bias=True)


def operators(content: bytes) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(content).graph.node]


def test_a_gated_product_becomes_one_node() -> None:
    before = onnx.load_from_string(gated_model_of(GATED))
    fused = with_gated_products(before.SerializeToString())
    assert fused is not None
    after = onnx.load_from_string(fused)
    (node,) = after.graph.node
    assert (node.domain, node.op_type, list(node.output)) == ("specdec", "GatedMatMulNBits", ["y"])
    assert list(node.input) == list(before.graph.node[0].input)
    assert list(node.attribute) == list(before.graph.node[0].attribute)
    assert list(after.graph.initializer) == list(before.graph.initializer)
    assert list(after.graph.output) == list(before.graph.output)
    opsets = {each.domain: each.version for each in after.opset_import}
    assert opsets == {each.domain: each.version for each in before.opset_import} | {"specdec": 1}


@pytest.mark.parametrize(
    "model",
    [
        model_of(GATED),
        gated_model_of(GATED, alpha=1.702),
        gated_model_of(GATED, axis=1),
        gated_model_of(GATED, also="both"),
        gated_model_of(GATED, also="gate"),
        gated_model_of(GATED, also="open"),
        gated_model_of(GATED, also="value"),
        gated_model_of(Product(96, 64)),
    ],
    ids=["no gate", "GELU", "rows", "both used", "gate used", "open used", "value used", "odd size"],
)
def test_what_only_looks_like_one_stays(model: bytes) -> None:
    assert with_gated_products(model) is None


def test_every_layer_of_an_int4_export_is_joined(tmp_path: Path) -> None:
    model = open_model(export_tiny(tmp_path / "m", format="int4"))
    fused = with_gated_products(model.graph.read_bytes())
    assert fused is not None
    assert operators(fused).count("GatedMatMulNBits") == tiny_config()["num_hidden_layers"]
    assert "QuickGelu" not in operators(fused)
