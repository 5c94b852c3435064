"""The report: sizes that add up, quality that means something, and a table."""

import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from support.gguf_files import write_gguf
from support.graphs import GraphRunner
from support.tiny import export_model, export_tiny, tiny_checkpoint

from specdec_onnx.export.cli import main
from specdec_onnx.export.pipeline import export_pair
from specdec_onnx.export.quality import measure
from specdec_onnx.export.quality.measure import Quality, compare, forward_cost_ms, text_tokens
from specdec_onnx.export.quality.report import read_report, render, size_by_part
from specdec_onnx.export.spec import Options
from specdec_onnx.models.folder import ModelFolder, open_model

MEASURED = {"forward_cost_ms", "kl_mean", "top1_agreement", "quality_reference", "quality_tokens"}


def quality(folder: Path, source: Path, count: int = 100) -> Quality:
    """Of one exported folder against the logits of another."""
    tokens = text_tokens(open_model(source), count)
    return compare(GraphRunner(source).logits(tokens), open_model(folder))


def test_sizes_of_parts_add_up_to_the_data_file(tmp_path: Path) -> None:
    folder = export_tiny(tmp_path / "model", format="fp32", tie_word_embeddings=False)
    sizes = read_report(folder)["size_bytes"]
    assert sizes["embedding"] == sizes["head"] == 384 * 64 * 4
    assert sizes["attention"] == 2 * 4 * ((64 + 2 * 32) * 64 + 64 * 64 + 64 + 2 * 32) - 2 * 4 * (64 + 2 * 32)
    assert sizes["feed_forward"] == 2 * 4 * 3 * 96 * 64
    assert sum(sizes.values()) <= (folder / "onnx" / "model.onnx_data").stat().st_size


def test_embeddings_are_half_as_large_and_as_good(tmp_path: Path) -> None:
    halved = export_tiny(tmp_path / "int8", format="int8")
    assert read_report(halved)["size_bytes"]["embedding"] == 384 * 64 * 2
    loud = tiny_checkpoint()
    loud.tensors["model.embed_tokens.weight"][7, 3] = 1e5
    beyond = export_model(loud, tmp_path / "loud", format="int8")
    assert read_report(beyond)["size_bytes"]["embedding"] == 384 * 64 * 4


def test_unknown_tensors_count_as_other() -> None:
    assert size_by_part({"cos_cache": 7, "trimmed_logits.weight": 5})["other"] == 7
    assert size_by_part({"cos_cache": 7, "trimmed_logits.weight": 5})["head"] == 5


def test_a_graph_agrees_with_itself(tmp_path: Path) -> None:
    folder = export_tiny(tmp_path / "model", format="fp32")
    found = quality(folder, folder)
    assert found.kl_mean == pytest.approx(0, abs=1e-6)
    assert (found.tokens, found.top1_agreement, found.kept_probability) == (100, 1.0, 1.0)


def test_finer_formats_score_better(tmp_path: Path) -> None:
    names = ("fp32", "w8a8", "int4")
    reference, w8a8, int4 = (export_tiny(tmp_path / name, format=name, seed=4) for name in names)
    fine, coarse = quality(w8a8, reference), quality(int4, reference)
    assert 0 < fine.kl_mean < 0.3 * coarse.kl_mean
    assert fine.top1_agreement > coarse.top1_agreement


def test_divergence_follows_its_definition(tmp_path: Path) -> None:
    first, second = (export_tiny(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    tokens = text_tokens(open_model(first), 3)
    p, q = (GraphRunner(folder).logits(tokens).astype(np.float64) for folder in (first, second))
    p, q = (np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True) for rows in (p, q))
    assert quality(second, first, 3).kl_mean == pytest.approx(
        (p * np.log(p / q)).sum(axis=1).mean(), rel=1e-5
    )


def test_a_trimmed_head_is_compared_on_its_ids(tmp_path: Path) -> None:
    whole = export_tiny(tmp_path / "whole")
    found = quality(export_tiny(tmp_path / "trimmed", trim=300), whole)
    assert found.kl_mean == pytest.approx(0, abs=1e-6)
    assert 0.4 < found.kept_probability < 0.99
    assert 0.4 < found.top1_agreement < 0.99


def test_costs_of_every_width_that_fits(tmp_path: Path) -> None:
    model = open_model(export_tiny(tmp_path / "model"))
    costs = forward_cost_ms(model)
    assert list(costs) == [1, 2, 4, 8, 16]
    assert all(cost > 0 for cost in costs.values())
    short = open_model(export_model(tiny_checkpoint(), tmp_path / "short", context=10))
    assert list(forward_cost_ms(short)) == [1, 2, 4, 8]


def test_models_take_turns_and_the_fastest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [open_model(export_tiny(tmp_path / name)) for name in "ab"]
    turns = iter(
        [
            {1: 5.0, 2: 9.0},
            {1: 8.0, 2: 8.0},
            {1: 7.0, 2: 6.0},
            {1: 50.0, 2: 4.0},
            {1: 6.0, 2: 7.0},
            {1: 9.0, 2: 9.0},
        ]
    )
    asked: list[str] = []

    def forward_cost_ms(model: ModelFolder, widths: Sequence[int]) -> dict[int, float]:
        asked.append(model.path.name)
        return next(turns)

    monkeypatch.setattr(measure, "forward_cost_ms", forward_cost_ms)
    assert measure.steady_cost_ms(models, (1, 2)) == [{1: 5.0, 2: 6.0}, {1: 8.0, 2: 4.0}]
    assert asked == list("ababab")


def test_a_measured_pair_reports_costs_quality_and_speed_up(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint()
    folder = export_pair(checkpoint, checkpoint, tmp_path / "pair", Options("w8a8", trim=300), measure=True)
    report = read_report(folder)
    whole = {"export_seconds", "peak_memory_bytes", "memory_bytes", "speculation", "whole_seconds"}
    assert set(report) == {"target", "draft", *whole}
    assert report["target"].keys() >= MEASURED
    assert report["draft"].keys() == report["target"].keys() | {"kept_probability"}
    assert report["peak_memory_bytes"] > 10_000_000
    assert report["whole_seconds"] > report["export_seconds"] > 0
    said = f"exported in {report['export_seconds']:.0f} s, {report['whole_seconds']:.0f} s with measurements"
    assert said in render(report)
    facts = json.loads((folder / "target" / "specdec.json").read_text())
    assert facts["quality"]["kl_mean"] == report["target"]["kl_mean"]
    table = render(report)
    for word in ("target", "draft", "w8a8", "int4-128", "S=16", "KL to fp32", "kept by the trimmed head"):
        assert word in table
    assert len({len(line) for line in table.splitlines()[:-4]}) == 1
    assert list(report["memory_bytes"]) == ["512"]
    found = report["speculation"]
    assert 0 <= found["acceptance_rate"] <= 1 <= found["tokens_per_round"]
    assert found["predicted_speedup"] >= 1
    assert found["measured_speedup"].keys() == {"draft", "auto"}
    picture = ElementTree.parse(folder / "report.svg").getroot()
    texts = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    for words in ("Size by part, MB", "S = 16", "draft, predicted", "512 tokens", "target, w8a8"):
        assert words in texts


def test_perplexity_follows_its_definition(tmp_path: Path) -> None:
    first, second = (export_tiny(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    tokens = text_tokens(open_model(first), 90)
    found = quality(second, first, 90)
    for folder, perplexity in ((first, found.source_perplexity), (second, found.perplexity)):
        rows = GraphRunner(folder).logits(tokens).astype(np.float64)[:-1]
        chance = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
        nats = -np.log(chance[np.arange(89), tokens[1:]]).mean()
        assert perplexity == pytest.approx(np.exp(nats), rel=1e-4)


def test_a_report_is_shown_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = export_tiny(tmp_path / "model", format="int4")
    assert main(["inspect", str(folder)]) == 0
    assert "int4-32" in capsys.readouterr().out
    (folder / "report.json").unlink()
    assert main(["inspect", str(folder)]) == 2
    assert "report.json" in capsys.readouterr().err


def test_a_report_without_measuring_has_only_sizes(tmp_path: Path) -> None:
    report = read_report(export_tiny(tmp_path / "model", format="int4"))
    assert not MEASURED & set(report)
    assert "int4-32" in render(report)


def test_a_gguf_file_without_a_pre_tokenizer_is_noted_in_the_report(tmp_path: Path) -> None:
    named = write_gguf(tmp_path / "named.gguf", tiny_checkpoint("llama"))
    silent = write_gguf(tmp_path / "silent.gguf", tiny_checkpoint("llama"), without=["tokenizer.ggml.pre"])
    pair = export_pair(silent, silent, tmp_path / "pair", Options(trim=None))
    for role in ("target", "draft"):
        assert f"\n{role}: the GGUF file names no pre-tokenizer" in render(read_report(pair))
    alone = export_model(silent, tmp_path / "alone", format="fp32")
    assert "model: the GGUF file names no pre-tokenizer" in render(read_report(alone))
    assert "pre-tokenizer" not in render(read_report(export_model(named, tmp_path / "m", format="fp32")))
