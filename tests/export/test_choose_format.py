"""`--target-format auto`: every candidate is measured, the rule chooses, the loser leaves nothing."""

from pathlib import Path

import pytest
from support.graphs import GraphRunner
from support.tiny import export_model, export_tiny, tiny_checkpoint

from specdec_onnx.export import choose_format as formats
from specdec_onnx.export.choose_format import Candidate, choose_format, tokens_per_second
from specdec_onnx.export.cli import main
from specdec_onnx.export.pipeline import export_pair
from specdec_onnx.export.quality.report import decisions, read_report, render
from specdec_onnx.export.spec import Options
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.models.pair import open_pair

TOKENS = [5, 260, 31, 99, 7]
CHECKPOINT = tiny_checkpoint(max_position_embeddings=1024)


def candidate(name: str, kl: float, speed: float) -> Candidate:
    return Candidate(name, {1: 1.0}, kl, speed)


@pytest.mark.parametrize(
    ("fine", "coarse", "best"),
    [
        ((0.010, 10.0), (0.019, 10.1), "coarse"),
        ((0.010, 10.0), (0.019, 9.9), "fine"),
        ((0.010, 10.0), (0.030, 12.4), "fine"),
        ((0.010, 10.0), (0.030, 12.6), "coarse"),
        ((0.010, 10.0), (0.060, 30.0), "fine"),
    ],
)
def test_the_fastest_of_equals_or_a_clearly_faster_one_is_chosen(
    fine: tuple[float, float], coarse: tuple[float, float], best: str
) -> None:
    found = [candidate("fine", *fine), candidate("coarse", *coarse)]
    assert choose_format(found).name == choose_format(found[::-1]).name == best


def test_speed_is_predicted_from_costs_and_acceptance() -> None:
    flat = {1: 100.0, 2: 100.0, 5: 100.0, 8: 100.0}
    assert tokens_per_second(0.0, flat, 0.0) == pytest.approx(10)
    assert tokens_per_second(1.0, flat, 0.0) == pytest.approx(90)
    assert tokens_per_second(0.5, flat, 1e6) == pytest.approx(10)
    steep = {1: 50.0, 2: 100.0, 5: 250.0, 8: 400.0}
    assert tokens_per_second(0.9, steep, 0.0) == pytest.approx(20)


@pytest.mark.parametrize(("better", "kernels"), [("w8a8", "off"), ("int4-32", "off"), ("mixed", "auto")])
def test_the_better_one_stays_alone(
    better: str, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_KERNELS", kernels)
    monkeypatch.setattr(
        formats, "choose_format", lambda found: next(one for one in found if one.name == better)
    )
    folder = export_pair(CHECKPOINT, None, tmp_path / "auto", Options(target_format="auto"))
    named = export_model(CHECKPOINT, tmp_path / "named", format=better)
    model, report = open_model(folder), read_report(folder)
    assert (model.facts["format"], report["format"], report["formats"]["chosen"]) == (better,) * 3
    assert (GraphRunner(folder).logits(TOKENS) == GraphRunner(named).logits(TOKENS)).all()
    assert report["size_bytes"] == read_report(named)["size_bytes"]
    files = [{path.relative_to(top) for path in top.rglob("*")} for top in (folder, named)]
    assert files[0] == files[1]


def test_the_report_has_every_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_KERNELS", "off")
    folder = export_pair(CHECKPOINT, CHECKPOINT, tmp_path / "pair", Options(target_format="auto"))
    report = read_report(folder)
    formats = report["target"]["formats"]
    assert formats["candidates"].keys() == {"w8a8", "int4-32"}
    for one in formats["candidates"].values():
        assert list(one["forward_cost_ms"]) == ["1", "2", "5", "8"]
        assert one["predicted_tokens_per_second"] > 0
    assert formats["candidates"]["w8a8"]["kl_mean"] < formats["candidates"]["int4-32"]["kl_mean"]
    assert (formats["acceptance"], formats["draft_token_ms"] > 0) == (0.7, True)
    pair = open_pair(folder)
    assert pair.draft is not None and pair.target.facts["format"] == formats["chosen"]
    assert formats["chosen"] in render(report)
    assert main(["inspect", str(folder)]) == 0
    assert f"target format: {formats['chosen']} (predicted w8a8" in capsys.readouterr().out


def test_without_a_draft_model_drafts_come_from_the_text(tmp_path: Path) -> None:
    report = read_report(export_pair(CHECKPOINT, None, tmp_path / "m", Options(target_format="auto")))
    assert (report["formats"]["acceptance"], report["formats"]["draft_token_ms"]) == (0.4, 0)
    assert next(decisions(report)).startswith(f"target format: {report['format']}")


def test_a_prebuilt_draft_is_timed_as_it_is(tmp_path: Path) -> None:
    prebuilt = export_tiny(tmp_path / "prebuilt", format="int8")
    folder = export_pair(tiny_checkpoint(), prebuilt, tmp_path / "pair", Options(target_format="auto"))
    assert read_report(folder)["target"]["formats"]["draft_token_ms"] > 0


def test_a_prebuilt_target_keeps_its_format(tmp_path: Path) -> None:
    prebuilt = export_tiny(tmp_path / "prebuilt")
    with pytest.raises(SpecdecError, match="cannot be chosen by measuring"):
        export_pair(prebuilt, None, tmp_path / "out", Options(target_format="auto"))
    assert not (tmp_path / "out").exists()
