"""`specdec demo` over a scripted engine: two answers, one picture, one verdict."""

from pathlib import Path

import pytest
from support.scripted_engine import ANSWER, ScriptedEngine

from specdec_onnx.tui.cli.main import main


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    scripted = ScriptedEngine()
    scripted.install(monkeypatch)
    monkeypatch.setattr("specdec_onnx.tui.prepare.prepared_pair", lambda name: Path(name))
    return scripted


def test_the_demo_shows_both_answers_and_the_ratio(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--prompt", "Count"]) == 0
    said = capsys.readouterr().out
    assert said.count(ANSWER) == 2
    assert "8.0 tok/s" in said and "32.0 tok/s" in said
    assert "4.00× as fast, outputs identical: 8 of 8 tokens" in said


def test_the_figures_stand_side_by_side(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo"])
    rows = {line[:18].strip(): line[18:].split() for line in capsys.readouterr().out.splitlines()}
    assert rows["tokens per round"] == ["1.00", "4.00"]
    assert rows["drafts accepted"] == ["–", "100", "%"]


def test_a_difference_is_never_hidden(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.answers["auto"] = "one two three FOUR"
    assert main(["demo"]) == 1
    assert "the outputs differ from token 4 on" in capsys.readouterr().out


def test_the_small_demo_drafts_from_the_text(engine: ScriptedEngine) -> None:
    assert main(["demo", "--small", "--max-new-tokens", "5"]) == 0
    assert [(call.mode, call.parameters.max_new_tokens) for call in engine.calls[-2:]] == [
        ("plain", 5),
        ("suffix", 5),
    ]


def test_each_mode_is_warmed_up_first(engine: ScriptedEngine) -> None:
    main(["demo", "--prompt", "Count"])
    assert [(call.mode, call.prompt == "Count") for call in engine.calls] == [
        ("plain", False),
        ("auto", False),
        ("plain", True),
        ("auto", True),
    ]
