"""The cost of a token by depth, told from slices."""

from pathlib import Path

import pytest
from support.tiny import tiny_checkpoint

from specdec_onnx.export import layer_pruning as slices
from specdec_onnx.export.graph.model_writer import Order
from specdec_onnx.export.layer_pruning import TokenCost
from specdec_onnx.export.quantization.linear import parse_format
from specdec_onnx.models.folder import ModelFolder

ORDER = Order(parse_format("int4"))


def token_cost(
    layers: int, costs: dict[int, float], work: Path, monkeypatch: pytest.MonkeyPatch
) -> TokenCost:
    def measured(models: list[ModelFolder], widths: tuple[int, ...]) -> list[dict[int, float]]:
        return [{1: costs[model.config["num_hidden_layers"]]} for model in models]

    monkeypatch.setattr(slices, "steady_cost_ms", measured)
    return TokenCost(tiny_checkpoint(num_hidden_layers=layers), ORDER, work)


@pytest.mark.parametrize(
    ("layers", "costs", "expected"),
    [
        (24, {6: 5.0, 12: 8.0}, 14.0),
        (2, {1: 3.0, 2: 4.0}, 4.0),
        (4, {1: 3.0, 2: 4.0}, 6.0),
        (1, {1: 3.0}, 3.0),
    ],
)
def test_a_line_through_two_slices(
    layers: int,
    costs: dict[int, float],
    expected: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert token_cost(layers, costs, tmp_path, monkeypatch)(layers) == pytest.approx(expected)


def test_noise_never_makes_depth_cheaper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = token_cost(24, {6: 5.0, 12: 4.0}, tmp_path, monkeypatch)
    assert token(24) == token(12) == token(1) == 5.0


def test_slices_leave_nothing(tmp_path: Path) -> None:
    assert TokenCost(tiny_checkpoint(num_hidden_layers=4), ORDER, tmp_path)(4) > 0
    assert list(tmp_path.iterdir()) == []
