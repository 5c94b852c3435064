"""`specdec bench --against ort-genai`, with a stand-in for the other program and, where it is installed, the real one."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.scripted_engine import ANSWER, ScriptedEngine
from support.tiny import export_tiny, export_tiny_pair

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.bench.opponent import _as_its_plain, require_config
from specdec_onnx.tui.bench.runs import Run
from specdec_onnx.tui.cli.main import main

FAKE = str(Path(__file__).parents[2] / "support" / "fake_genai")
TOKENS = [sum(word.encode()) for word in ANSWER.split()]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both this process and the worker find the stand-in first."""
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([FAKE, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ScriptedEngine]:
    scripted = ScriptedEngine()
    scripted.pair = scripted_genai_pair(tmp_path / "pair")
    scripted.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    yield scripted


def scripted_genai_pair(folder: Path, **extra: Any) -> Any:
    """A pair folder with just what the other program reads."""
    models = {}
    for name in ("target", "draft"):
        (folder / name).mkdir(parents=True)
        write_config(folder / name, **extra)
        graph = folder / name / "model.onnx"
        graph.touch()
        models[name] = SimpleNamespace(
            path=folder / name,
            name=name,
            graph=graph,
            weight_bytes=1,
            facts={"format": "int4"},
            chat_template=None,
            adds_bos=False,
            tokenizer=SimpleNamespace(encode=lambda text: [1, 2, 3]),
        )
    write_config(folder, model={"draft": {"filename": "draft/model.onnx"}}, **extra)
    return SimpleNamespace(path=folder, **models)


def write_config(folder: Path, **content: Any) -> None:
    (folder / "genai_config.json").write_text(json.dumps({"answer": TOKENS} | content))


def bench(*options: str) -> dict[str, Any]:
    assert (
        main(["bench", "pair", "--limit", "2", "--json", "o.json", "--against", "ort-genai", *options]) == 0
    )
    figures: dict[str, Any] = json.loads(Path("o.json").read_text())
    return figures


@pytest.mark.usefixtures("fake")
def test_a_long_prompt_is_read_once_and_its_repeats_are_counted_one_by_one(
    engine: ScriptedEngine,
) -> None:
    reports = [bench("--long", "--repeat", repeat) for repeat in ("1", "3")]
    once, thrice = (figures["against"]["ort-genai"]["modes"]["ngram"] for figures in reports)
    for name in ("tokens_per_round", "acceptance_rate", "new_tokens", "identical_to_plain"):
        assert once[name] == thrice[name] != 0


def test_answers_from_its_cache_are_compared_with_plain_ones_from_its_cache() -> None:
    first, later, other = (
        Run("a", (1, 2), ()),
        Run("a", (1, 3), (), again=True),
        Run("a", (1, 4), (), again=True),
    )
    round_ = {"plain": [first, later], "same": [first, later], "changed": [first, other]}
    assert _as_its_plain(round_, "same", "plain") and not _as_its_plain(round_, "changed", "plain")


@pytest.mark.usefixtures("fake")
def test_the_report_holds_the_other_programs_figures(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = bench("--modes", "plain")
    found = figures["against"]["ort-genai"]
    assert list(figures["modes"]) == ["plain", "auto"]  # auto is what is compared
    assert list(found["modes"]) == ["plain", "ngram", "ngram-adaptive", "draft", "draft-adaptive"]
    assert found["version"] == "0.0-fake" and found["threads"] >= 1 and found["peak_memory_bytes"] > 1e6
    best = found["modes"][found["best_mode"]]["decode_tokens_per_second"]
    assert best == max(mode["decode_tokens_per_second"] for mode in found["modes"].values())
    assert found["speed_ratio"] == round(32.0 / best, 3)
    for mode in found["modes"].values():
        assert mode["new_tokens"] == 16 and mode["identical_to_plain"] == mode["identical_to_ours"] == 2
    assert found["modes"]["ngram"]["acceptance_rate"] == round(2 / 3, 4)
    assert found["modes"]["plain"]["tokens_per_round"] == 1.0
    said = capsys.readouterr().out
    assert "ort-genai 0.0-fake" in said and "a library that writes" not in said


@pytest.mark.usefixtures("fake")
def test_answers_that_differ_are_counted(engine: ScriptedEngine) -> None:
    for folder in (Path("pair/target"), Path("pair")):
        content = json.loads((folder / "genai_config.json").read_text())
        (folder / "genai_config.json").write_text(json.dumps(content | {"speculative_answer": TOKENS[::-1]}))
    engine.answers = {"plain": "one two", "auto": "one two"}
    modes = bench()["against"]["ort-genai"]["modes"]
    assert [modes[name]["identical_to_plain"] for name in ("plain", "ngram", "draft")] == [2, 0, 0]
    assert [modes[name]["identical_to_ours"] for name in ("plain", "ngram", "draft")] == [0, 0, 0]


@pytest.mark.usefixtures("fake")
def test_both_write_the_same_number_of_tokens(engine: ScriptedEngine) -> None:
    figures = bench("--max-new-tokens", "3")
    modes = figures["against"]["ort-genai"]["modes"] | figures["modes"]
    assert {each["new_tokens"] for each in modes.values()} == {6}


@pytest.mark.usefixtures("fake")
def test_a_single_model_has_no_draft_modes(engine: ScriptedEngine) -> None:
    engine.pair.draft = None
    assert list(bench()["against"]["ort-genai"]["modes"]) == ["plain", "ngram", "ngram-adaptive"]


@pytest.mark.usefixtures("fake")
def test_the_other_program_gets_our_number_of_threads(engine: ScriptedEngine) -> None:
    assert bench("--threads", "3")["against"]["ort-genai"]["threads"] == 3


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("trouble", "words"),
    [({"refuse": "no such thing"}, "no such thing"), ({"die": "out of memory"}, "out of memory")],
)
def test_a_failure_of_the_worker_is_one_clear_error(
    engine: ScriptedEngine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trouble: dict[str, str],
    words: str,
) -> None:
    engine.pair = scripted_genai_pair(tmp_path / "broken", **trouble)
    assert main(["bench", "pair", "--against", "ort-genai"]) == 2
    said = capsys.readouterr().err
    assert "onnxruntime-genai failed" in said and words in said and "with details" not in said


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("trouble", [{}, {"refuse": "no"}, {"die": "no"}])
def test_no_worker_outlives_the_benchmark(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: dict[str, str]
) -> None:
    started: list[subprocess.Popen[str]] = []

    def popen(*args: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(real(*args, **options))
        return started[-1]

    real = subprocess.Popen
    monkeypatch.setattr("specdec_onnx.tui.child.subprocess.Popen", popen)
    engine.pair = scripted_genai_pair(tmp_path / "other", **trouble)
    assert main(["bench", "pair", "--against", "ort-genai", "--limit", "1"]) == (2 if trouble else 0)
    assert len(started) == 1 and started[0].returncode is not None


def test_a_missing_package_is_reported_before_anything_runs(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("specdec_onnx.tui.bench.opponent.find_spec", lambda name: None)
    assert main(["bench", "pair", "--against", "ort-genai"]) == 2
    assert "pip install onnxruntime-genai" in capsys.readouterr().err
    assert engine.calls == []


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    "options",
    [
        ["--against", "ort-genai", "--temperature", "1"],
        ["--against", "ort-genai", "--stop", "x"],
        ["--against", "ort-genai", "--device", "webgpu"],
        ["--against", "ort-genai", "--all-turns"],
        ["--against-pair", "pair"],
    ],
)
def test_settings_that_cannot_be_shared_are_refused(engine: ScriptedEngine, options: list[str]) -> None:
    assert main(["bench", "pair", *options]) == 2
    assert engine.calls == []


@pytest.mark.usefixtures("fake")
def test_another_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = (
        export_tiny(tmp_path / "ours", vocab_size=384),
        export_tiny(tmp_path / "theirs", vocab_size=320),
    )
    options = ["--against", "ort-genai", "--against-pair", str(ours), "--limit", "1"]
    assert main(["bench", str(theirs), *options]) == 2
    assert "another model" in capsys.readouterr().err


@pytest.mark.usefixtures("fake")
def test_a_folder_without_genai_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="genai_config"):
        require_config(tmp_path)


def test_the_real_program_gives_the_same_answers(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai", reason="onnxruntime-genai is not installed")
    pair, out = export_tiny_pair(tmp_path / "pair", target_format="int4"), tmp_path / "o.json"
    options = ["--limit", "2", "--max-new-tokens", "12", "--raw", "--json", str(out)]
    assert main(["bench", str(pair), "--against", "ort-genai", *options]) == 0
    figures = json.loads(out.read_text())
    found = figures["against"]["ort-genai"]
    assert list(found["modes"]) == ["plain", "ngram", "ngram-adaptive", "draft", "draft-adaptive"]
    assert figures["modes"]["auto"]["identical_to_plain"] == 2
    assert found["modes"]["plain"]["identical_to_ours"] == 2
    assert found["modes"]["draft"]["acceptance_rate"] > 0
    assert found["speed_ratio"] > 0
