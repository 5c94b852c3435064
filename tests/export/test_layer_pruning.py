"""Drafts with fewer layers: the graph of the layers that stay, how they are chosen, and what is said about it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.graphs import GraphRunner
from support.tiny import TinyCheckpoint, export_model, export_tiny, tiny_checkpoint

from specdec_onnx.export import layer_pruning
from specdec_onnx.export.cli import main
from specdec_onnx.export.graph.architecture import read_architecture
from specdec_onnx.export.layer_pruning import (
    AnsweredTexts,
    Dropped,
    LayerSubset,
    TokenCost,
    agreements,
    choose_layers,
    subset_config,
)
from specdec_onnx.export.pipeline import export_pair
from specdec_onnx.export.quality.float_model import FloatModel
from specdec_onnx.export.quality.report import decisions, read_report
from specdec_onnx.export.quantization.linear import parse_format
from specdec_onnx.export.spec import ModelSpec, Options
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.pair import open_pair
from specdec_onnx.runtime.engine import load

TOKENS = [5, 260, 31, 99, 7]
IDLE = 1


def with_an_idle_layer(layers: int = 3) -> TinyCheckpoint:
    """Layer IDLE adds nothing to what passes through it."""
    whole = tiny_checkpoint(num_hidden_layers=layers, max_position_embeddings=1024)
    silent = {f"model.layers.{IDLE}.{name}.weight": 0.0 for name in ("self_attn.o_proj", "mlp.down_proj")}
    tensors = {name: values * np.float32(silent.get(name, 1)) for name, values in whole.tensors.items()}
    return replace(whole, tensors=tensors)


def test_layers_are_renumbered() -> None:
    short = LayerSubset(tiny_checkpoint(num_hidden_layers=4), (0, 3))
    assert short.config["num_hidden_layers"] == 2
    ours = {name for name in short.names() if name.startswith("model.layers.")}
    assert {name.split(".")[2] for name in ours} == {"0", "1"}
    name = "model.layers.{}.mlp.down_proj.weight"
    whole = tiny_checkpoint(num_hidden_layers=4)
    np.testing.assert_array_equal(short.tensor(name.format(1)), whole.tensor(name.format(3)))
    assert short.shape(name.format(1)) == (64, 96)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("gemma2", {"sliding_window": 8}),
        ("smollm3", {}),
        ("qwen2", {"layer_types": ["full_attention"] * 6}),
        ("mistral", {"sliding_window": 8}),
    ],
)
def test_every_layer_keeps_its_span(family: str, sizes: dict[str, object]) -> None:
    config = tiny_checkpoint(family, num_hidden_layers=6, **sizes).config
    kept = (0, 2, 3, 5)
    whole, short = read_architecture(config), read_architecture(subset_config(config, kept))
    assert short.spans == tuple(whole.spans[index] for index in kept)


def test_dropping_an_idle_layer_changes_nothing(tmp_path: Path) -> None:
    checkpoint = with_an_idle_layer()
    target = export_model(checkpoint, tmp_path / "whole", format="fp32")
    options = Options(target_format="fp32", draft_format="fp32", trim=None, draft_layers=2)
    folder = export_pair(checkpoint, checkpoint, tmp_path / "pair", options)
    draft = open_pair(folder).draft
    assert draft is not None
    assert draft.config["num_hidden_layers"] == 2
    assert draft.facts["kept_layers"] == [0, 2]
    runner = GraphRunner(draft.path)
    np.testing.assert_allclose(runner.logits(TOKENS), GraphRunner(target).logits(TOKENS), atol=1e-4)
    layers = read_report(folder)["draft"]["layers"]
    assert (layers["dropped"], layers["kept"], layers["acceptance_after"]) == ([IDLE], 2, 1.0)
    assert "draft layers: 1 dropped, acceptance 100.0% → 100.0%" in next(decisions(read_report(folder)))


def test_a_shortened_draft_drafts(tmp_path: Path) -> None:
    checkpoint = with_an_idle_layer()
    engine = load(export_pair(checkpoint, checkpoint, tmp_path / "pair", Options(trim=300, draft_layers=2)))
    plain = engine.generate(TOKENS, mode="plain", max_new_tokens=20)
    assert engine.generate(TOKENS, mode="draft", max_new_tokens=20) == plain
    assert engine.last.statistics.accepted > 0


def test_agreements_follow_their_definition() -> None:
    draft, random = tiny_checkpoint(num_hidden_layers=3), np.random.default_rng(1)
    texts = [(random.integers(0, 380, 7).tolist(), random.integers(0, 380, n).tolist()) for n in (30, 22)]
    whole = FloatModel(draft)
    for _, answer in texts:
        answer[::2] = [3] * len(answer[::2])
    texts = [(prompt, _continued(whole, prompt, answer)) for prompt, answer in texts]
    sets = [Dropped(), Dropped([0]), Dropped([2]), Dropped([0, 2]), Dropped([1, 2])]
    ids = np.arange(0, 384, 2)
    for kept_ids in (None, ids):
        found = agreements(draft, AnsweredTexts.of(texts), sets, kept_ids)
        assert set(found) == set(sets)
        for dropped, share in found.items():
            assert share == pytest.approx(_agreement(draft, texts, dropped, kept_ids))
        assert len(set(found.values())) > 2


def _continued(model: FloatModel, prompt: list[int], answer: list[int]) -> list[int]:
    """The answer, its odd places taken from the model's own greedy choice."""
    logits = model.logits([*prompt, *answer])
    return [
        int(logits[len(prompt) + place - 1].argmax()) if place % 2 else token
        for place, token in enumerate(answer)
    ]


def _agreement(
    draft: TinyCheckpoint,
    texts: list[tuple[list[int], list[int]]],
    dropped: Dropped,
    kept_ids: np.ndarray[tuple[int], np.dtype[np.int64]] | None,
) -> float:
    model = FloatModel(LayerSubset(draft, [index for index in range(3) if index not in dropped]))
    hits = []
    for prompt, answer in texts:
        rows = model.logits([*prompt, *answer])[len(prompt) - 1 : -1]
        best = rows.argmax(axis=1) if kept_ids is None else kept_ids[rows[:, kept_ids].argmax(axis=1)]
        hits += (best == answer).tolist()
    return sum(hits) / len(hits)


def measured(losses: Mapping[int, float]) -> object:
    def measure(sets: Iterable[Dropped]) -> dict[Dropped, float]:
        return {dropped: 0.8 - sum(losses[index] for index in dropped) for dropped in sets}

    return measure


LOSSES = {0: 0.5, 1: 0.02, 2: 0.01, 3: 0.3, 4: 0.04, 5: 0.2}


def test_a_number_takes_the_least_missed_layers() -> None:
    assert choose_layers(6, 3, measured(LOSSES), lambda acceptance, layers: 1.0).dropped == {1, 2, 4}  # type: ignore[arg-type]
    assert choose_layers(6, 6, measured(LOSSES), lambda acceptance, layers: 1.0).dropped == set()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("price", "dropped"), [(0.001, set()), (0.011, set()), (0.04, {1, 2}), (0.06, {1, 2, 4})]
)
def test_auto_drops_what_pays(price: float, dropped: set[int]) -> None:
    def speed(acceptance: float, layers: int) -> float:
        return 1 + acceptance - price * layers

    assert choose_layers(6, "auto", measured(LOSSES), speed).dropped == dropped  # type: ignore[arg-type]


def test_auto_never_drops_more_than_half() -> None:
    found = choose_layers(1, "auto", measured(LOSSES), lambda acceptance, layers: 9.0 - layers)  # type: ignore[arg-type]
    assert found.dropped == set()


def test_keeping_more_layers_than_there_are_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="cannot keep 4 layers"):
        export_pair(tiny_checkpoint(), with_an_idle_layer(), tmp_path / "pair", Options(draft_layers=4))
    assert list(tmp_path.iterdir()) == []


def test_a_prebuilt_graph_keeps_its_layers(tmp_path: Path) -> None:
    prebuilt = export_tiny(tmp_path / "prebuilt")
    with pytest.raises(SpecdecError, match="cannot be shortened"):
        export_pair(tiny_checkpoint(), prebuilt, tmp_path / "pair", Options(draft_layers=1))


def test_layers_of_no_draft_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="no draft"):
        export_pair(tiny_checkpoint(), None, tmp_path / "out", Options(draft_layers="auto"))


def test_a_layer_count_is_a_number_or_auto(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["x.gguf", "-o", "out", "--draft-layers", "some"])
    assert "positive whole number" in capsys.readouterr().err


SPEC = ModelSpec(parse_format("int4"))


def token_cost(
    layers: int, costs: dict[int, float], work: Path, monkeypatch: pytest.MonkeyPatch
) -> TokenCost:
    def measured(models: list[ModelFolder], widths: tuple[int, ...]) -> list[dict[int, float]]:
        return [{1: costs[model.config["num_hidden_layers"]]} for model in models]

    monkeypatch.setattr(layer_pruning, "steady_cost_ms", measured)
    return TokenCost(tiny_checkpoint(num_hidden_layers=layers), SPEC, work)


@pytest.mark.parametrize(
    ("layers", "costs", "expected"),
    [
        (24, {6: 5.0, 12: 8.0}, 14.0),
        (2, {1: 3.0, 2: 4.0}, 4.0),
        (4, {1: 3.0, 2: 4.0}, 6.0),
        (1, {1: 3.0}, 3.0),
    ],
)
def test_the_cost_of_a_token_is_a_line_through_two_measured_models(
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


def test_measured_models_leave_nothing(tmp_path: Path) -> None:
    assert TokenCost(tiny_checkpoint(num_hidden_layers=4), SPEC, tmp_path)(4) > 0
    assert list(tmp_path.iterdir()) == []
