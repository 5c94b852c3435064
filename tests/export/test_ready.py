"""Folders that hold a graph already: taken as they are, paired, and refused when they cannot speculate."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.graphs import GraphRunner
from support.tiny import export_tiny

from specdec_onnx.export.cli import main
from specdec_onnx.export.pipeline import export_model, export_pair
from specdec_onnx.export.report import read_report, render
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.engine import load

OURS = ("specdec.json", "report.json", "genai_config.json")


def hub_layout(folder: Path, **sizes: object) -> Path:
    """As onnx-community and Optimum publish: config.json, tokenizer, onnx/model.onnx."""
    export_tiny(folder, format="int4", **sizes)
    for name in OURS:
        (folder / name).unlink()
    return folder


def genai_layout(folder: Path) -> Path:
    """As ONNX Runtime GenAI's builder writes: everything flat, no config.json."""
    export_tiny(folder, format="int4")
    for file in (folder / "onnx").iterdir():
        file.rename(folder / file.name)
    (folder / "onnx").rmdir()
    for name in ("config.json", "specdec.json", "report.json"):
        (folder / name).unlink()
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["decoder"]["filename"] = "model.onnx"
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("layout", [hub_layout, genai_layout])
def test_repacked_whole(layout: object, tmp_path: Path) -> None:
    out = export_model(layout(tmp_path / "theirs"), tmp_path / "ours")  # type: ignore[operator]
    same = export_tiny(tmp_path / "again", format="int4")
    tokens = list(range(5, 25))
    np.testing.assert_array_equal(GraphRunner(out).logits(tokens), GraphRunner(same).logits(tokens))
    model = open_model(out)
    assert model.facts["format"] == "ready"
    assert len(model.facts["source"]["sha256"]) == 64
    assert (
        json.loads((out / "genai_config.json").read_text())["model"]["decoder"]["filename"]
        == "onnx/model.onnx"
    )
    load(out).generate("tea", max_new_tokens=3)


def test_target_and_draft_from_different_sources(tmp_path: Path) -> None:
    """A ready target and a draft of our own making, through the command line."""
    target = hub_layout(tmp_path / "target", num_hidden_layers=3)
    draft = hub_layout(tmp_path / "draft")
    assert main([str(target), "--draft", str(draft), "-o", str(tmp_path / "pair")]) == 0
    report = read_report(tmp_path / "pair")
    assert set(report["target"]["forward_cost_ms"]) >= {"1", "2", "4"}
    assert "KL" not in render(report)
    engine = load(tmp_path / "pair")
    answers = {}
    for mode in ("plain", "draft", "auto"):
        engine.generate("Tea for two", max_new_tokens=12, mode=mode)
        answers[mode] = engine.last.tokens
    assert answers["plain"] == answers["draft"] == answers["auto"]


def without_data(folder: Path) -> None:
    (folder / "onnx" / "model.onnx_data").unlink()


def damaged(folder: Path) -> None:
    (folder / "onnx" / "model.onnx").write_bytes(b"\xff\xff no graph")


def data_outside(folder: Path) -> None:
    graph = onnx.load(folder / "onnx" / "model.onnx", load_external_data=False)
    for tensor in graph.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../../secret"
    onnx.save(graph, folder / "onnx" / "model.onnx")
    shutil.copy(folder / "onnx" / "model.onnx_data", folder.parent / "secret")


def without_cache(folder: Path) -> None:
    graph = onnx.load(folder / "onnx" / "model.onnx", load_external_data=False)
    for value in graph.graph.input:
        value.name = value.name.replace("past_key_values.", "cache.")
    onnx.save(graph, folder / "onnx" / "model.onnx")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_data, "lacks its data"),
        (damaged, "no ONNX graph"),
        (data_outside, "outside itself"),
        (without_cache, "cannot be used for speculative decoding"),
    ],
)
def test_refused_and_nothing_left(spoil: object, message: str, tmp_path: Path) -> None:
    folder = hub_layout(tmp_path / "theirs")
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(SpecdecError, match=message):
        export_pair(folder, None, tmp_path / "out")
    assert not (tmp_path / "out").exists()
