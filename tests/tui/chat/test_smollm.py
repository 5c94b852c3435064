"""The commands on a real model, from nothing: download, export, answer, measure."""

import io
import json
from pathlib import Path

import pytest

from specdec_onnx.tui.cli.main import main

pytestmark = pytest.mark.integration
PAIR = "smollm2-135m"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_HOME", str(home))


def test_demo_from_nothing_to_two_identical_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--small", "--max-new-tokens", "48"]) == 0
    said = capsys.readouterr().out
    assert "outputs identical: 48 of 48 tokens" in said
    assert said.count("def push(self, item):") == 3  # in the prompt and in both answers


def test_an_answer_of_a_piped_prompt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("The capital of France is"))
    assert main(["run", PAIR, "--raw", "--json", "--max-new-tokens", "8"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"].startswith(" Paris") and len(answer["tokens"]) == 8
    assert answer["statistics"]["prompt_tokens"] == 5


def test_a_benchmark_finds_identical_outputs(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    assert main(["bench", PAIR, "--limit", "1", "--max-new-tokens", "24", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert {mode: each["identical_to_plain"] for mode, each in figures["modes"].items()} == {
        "plain": 1,
        "suffix": 1,
        "auto": 1,
    }
    assert all(cost > 0 for cost in figures["forward_cost_ms"].values())
