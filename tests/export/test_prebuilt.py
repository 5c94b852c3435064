"""Folders that hold a graph already: taken as they are, paired, and refused when they cannot speculate."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.tiny import export_model, export_tiny, tiny_checkpoint

from specdec_onnx.export import sources
from specdec_onnx.export.cli import main
from specdec_onnx.export.pipeline import export_pair
from specdec_onnx.export.quality.report import read_report, render
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.engine import load
from specdec_onnx.runtime.model.decoder import Decoder

OURS = ("specdec.json", "report.json", "genai_config.json")


def hub_layout(folder: Path, **sizes: object) -> Path:
    """As onnx-community and Optimum publish: config.json, tokenizer, onnx/model.onnx."""
    export_tiny(folder, format="int4", **sizes)
    for name in OURS:
        (folder / name).unlink()
    return folder


def genai_layout(folder: Path, **sizes: object) -> Path:
    """As ONNX Runtime GenAI's builder writes: everything flat, no config.json, no number on the cache's last axis."""
    export_tiny(folder, format="int4", **sizes)
    with_symbolic_axes(folder / "onnx" / "model.onnx", {0: "batch_size", 3: "kv_cache_dim"})
    for file in (folder / "onnx").iterdir():
        file.rename(folder / file.name)
    (folder / "onnx").rmdir()
    for name in ("config.json", "specdec.json", "report.json"):
        (folder / name).unlink()
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["decoder"]["filename"] = "model.onnx"
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


def with_symbolic_axes(graph: Path, names: dict[int, str]) -> None:
    """Give those axes of the graph's caches a name in place of a number."""
    model = onnx.load(graph, load_external_data=False)
    for value in [*model.graph.input, *model.graph.output]:
        if value.name.startswith(("past_key_values.", "present.")):
            for place, name in names.items():
                value.type.tensor_type.shape.dim[place].dim_param = name
    onnx.save(model, graph)


def symbolic_hub_layout(folder: Path) -> Path:
    """As onnx-community publishes, without a number for the cache's width or heads."""
    hub_layout(folder)
    with_symbolic_axes(folder / "onnx" / "model.onnx", {0: "batch_size", 1: "kv_heads", 3: "head_dim"})
    return folder


@pytest.mark.parametrize("layout", [hub_layout, genai_layout, symbolic_hub_layout])
def test_a_prebuilt_folder_is_repacked_whole(layout: object, tmp_path: Path) -> None:
    out = export_model(layout(tmp_path / "theirs"), tmp_path / "ours")  # type: ignore[operator]
    same = export_tiny(tmp_path / "again", format="int4")
    tokens = list(range(5, 25))
    theirs, ours = (Decoder.open(open_model(folder), capacity=32).forward(tokens) for folder in (out, same))
    np.testing.assert_array_equal(theirs, ours)
    model = open_model(out)
    assert model.facts["format"] == "prebuilt"
    assert len(model.facts["source"]["sha256"]) == 64
    decoder = json.loads((out / "genai_config.json").read_text())["model"]["decoder"]
    assert decoder["filename"] == "onnx/model.onnx"
    assert (decoder["head_size"], decoder["num_key_value_heads"]) == (16, 2)
    load(out).generate("tea", max_new_tokens=3)


def test_target_and_draft_may_both_be_prebuilt(tmp_path: Path) -> None:
    """A prebuilt target and a draft of our own making, through the command line."""
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


def test_a_builders_folder_takes_our_draft_and_answers_as_our_own_export(tmp_path: Path) -> None:
    """The builder leaves the width of its cache to genai_config.json."""
    pair = export_pair(
        genai_layout(tmp_path / "theirs"), tiny_checkpoint(num_hidden_layers=1), tmp_path / "pair"
    )
    ours, engine = load(export_tiny(tmp_path / "ours", format="int4")), load(pair)
    ours.generate("Tea for two", max_new_tokens=24, mode="plain")
    for mode in engine.modes:
        engine.generate("Tea for two", max_new_tokens=24, mode=mode)
        assert engine.last.tokens == ours.last.tokens, mode
    assert "draft" in engine.modes


def test_a_builders_folder_opens_where_it_lies(tmp_path: Path) -> None:
    model = open_model(genai_layout(tmp_path / "theirs"))
    assert model.config["head_dim"] == 16
    assert Decoder.open(model, capacity=40, half_cache=False).cache.nbytes == 2 * 2 * 2 * 16 * 40 * 4
    load(model.path).generate("tea", max_new_tokens=3)


def without_width(folder: Path) -> None:
    with_symbolic_axes(folder / "onnx" / "model.onnx", {3: "kv_cache_dim"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"head_dim": None, "hidden_size": None}))


def with_a_fixed_cache(folder: Path) -> None:
    graph = onnx.load(folder / "onnx" / "model.onnx", load_external_data=False)
    for value in graph.graph.input:
        if value.name.startswith("past_key_values."):
            value.type.tensor_type.shape.dim[2].dim_value = 128
    onnx.save(graph, folder / "onnx" / "model.onnx")


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def with_a_broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def with_a_small_vocabulary(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))


def without_a_context(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))


def with_a_cache_of_another_width(folder: Path) -> None:
    with_symbolic_axes(folder / "onnx" / "model.onnx", {3: "kv_cache_dim"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"head_dim": 24}))


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
        (damaged, "not an ONNX graph"),
        (data_outside, "outside itself"),
        (without_cache, "cannot be used for speculative decoding"),
        (without_width, "the width of the model's cache is unknown"),
        (
            without_tokenizer,
            r"theirs cannot be exported\s+why: its tokenizer cannot be used: tokenizer.json is",
        ),
        (with_a_broken_tokenizer, "theirs cannot be exported"),
        (with_a_small_vocabulary, "theirs cannot be exported"),
        (without_a_context, "theirs has no usable max_position_embeddings"),
        (with_a_cache_of_another_width, r"theirs/onnx/model\.onnx does not work"),
        (with_a_fixed_cache, "cannot be used for speculative decoding"),
    ],
)
def test_an_unusable_folder_is_refused_and_leaves_nothing(
    spoil: object, message: str, tmp_path: Path
) -> None:
    folder = hub_layout(tmp_path / "theirs")
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(SpecdecError) as caught:
        export_pair(folder, None, tmp_path / "out", measure=True)
    assert re.search(message, str(caught.value)) and str(tmp_path / "out") not in str(caught.value)
    assert [path for path in tmp_path.iterdir() if path.name not in ("theirs", "secret")] == []


def test_a_source_without_a_tokenizer_is_refused_before_its_draft_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sources, "fetch", lambda file, progress: asked.append(file.name))
    folder = hub_layout(tmp_path / "theirs")
    without_tokenizer(folder)
    assert main([str(folder), "--draft", "smollm2-135m", "-o", str(tmp_path / "out")]) == 2
    assert f"{folder} cannot be exported" in capsys.readouterr().err
    assert asked == []


def test_a_draft_for_a_builders_folder_has_to_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = genai_layout(tmp_path / "theirs")
    assert main([str(folder), "--draft", "auto", "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "cannot tell how large theirs is" in said and "no config.json" in said and "--draft SOURCE" in said


def test_the_command_says_how_long_the_export_took_and_how_long_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(hub_layout(tmp_path / "theirs")), "-o", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"exported in \d+ s, \d+ s with measurements", out)
    assert re.search(r"written to .*out, all in \d+ s", err)
