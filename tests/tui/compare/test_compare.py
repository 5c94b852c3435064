"""`specdec compare`: setups in processes of their own, what becomes of their trouble, and the report."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tiny import export_tiny_pair

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.tui.cli.main import main
from specdec_onnx.tui.compare.child import prompt_of
from specdec_onnx.tui.compare.setups import Plan, Setup, default_setups, read_setups

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny_pair(tmp_path_factory.mktemp("tiny") / "pair")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setup's process is a stand-in."""
    monkeypatch.setattr("specdec_onnx.tui.compare.setups._CHILD", "support.compare_child")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def compare(pair: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(*options: str, code: int = 0) -> dict[str, Any]:
        out = tmp_path / "figures.json"
        assert main(["compare", str(pair), "--json", str(out), *options]) == code
        figures: dict[str, Any] = json.loads(out.read_text())
        return figures

    return run


def test_two_setups_are_measured_for_real(compare: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    options = ["--prompt-lengths", "64,128", "--max-new-tokens", "6", "--repeat", "1", "--html", str(page)]
    figures = compare("--devices", "cpu,cpu:1", "--modes", "plain,draft", *options)
    assert list(figures["setups"]) == ["cpu", "cpu:1"]
    for setup in figures["setups"].values():
        assert setup["problem"] is None and setup["identity"] == "bit-identical"
        assert setup["runs_on"] == {"target": "cpu", "draft": "cpu"}
        assert setup["nodes"]["target"]["CPUExecutionProvider"] > 10
        assert setup["load_seconds"] > 0 and setup["peak_memory_bytes"] > 20e6
        assert [each["length"] for each in setup["lengths"]] == [64, 128]
        for each in setup["lengths"]:
            assert 0.9 * each["length"] < each["prompt_tokens"] <= each["length"]
            assert list(each["modes"]) == ["plain", "draft"]
            for mode in each["modes"].values():
                assert mode["first_token_ms"] > 0 and mode["per_token_ms"] > 0
                assert mode["new_tokens"] == 6 and mode["identical_to_plain"] is True
        assert all(cost > 0 for cost in setup["forward_cost_ms"].values())
    assert figures["setups"]["cpu:1"]["threads"] == 1
    assert figures["choice"]["setup"] in ("cpu", "cpu:1") and len(figures["uses"]) == 3
    assert figures["noise"]["seconds"] > 0
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.usefixtures("scripted")
def test_crashes_are_reported_and_end_nothing(
    compare: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    figures = compare("--devices", "cpu,cpu:7,cpu:9")
    assert figures["setups"]["cpu"]["problem"] is None
    assert figures["setups"]["cpu:7"]["problem"] == "its process was terminated by SIGSEGV"
    assert figures["setups"]["cpu:9"]["problem"] == "no room left"
    assert len(figures["setups"]["cpu:7"]["lengths"]) == 1  # what it found before it crashed
    assert figures["setups"]["cpu:9"]["lengths"] == []
    said = capsys.readouterr()
    assert "cpu:9: no room left" in said.err and "SIGSEGV" in said.out


@pytest.mark.usefixtures("scripted")
def test_a_setup_that_takes_too_long_is_stopped(compare: Callable[..., dict[str, Any]]) -> None:
    figures = compare("--devices", "cpu,cpu:8", "--timeout", "5", "--repeat", "2")
    assert figures["setups"]["cpu:8"]["problem"] == "stopped after 5 s, after 1 answer"
    assert figures["setups"]["cpu"]["problem"] is None


@pytest.mark.usefixtures("scripted")
def test_times_are_medians_over_repeats(compare: Callable[..., dict[str, Any]]) -> None:
    figures = compare("--devices", "cpu", "--repeat", "3", "--prompt-lengths", "64")
    auto = figures["setups"]["cpu"]["lengths"][0]["modes"]["auto"]
    assert auto["per_token_ms"] == 20.0 and auto["spread"] == [20.0, 20.0]
    assert figures["settings"]["repeat"] == 3 and figures["noise"]["plain_spread"] == 0.0


@pytest.mark.usefixtures("scripted")
def test_crossovers_and_the_choice_are_reported(
    compare: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    figures = compare("--devices", "cpu,cpu:3", "--prompt-lengths", "64,128")
    first, second = figures["crossovers"]["by_answer"]
    assert [each["setup"] for each in first["segments"]] == ["cpu", "cpu:3"]
    assert first["segments"][1]["from_tokens"] == 31  # 100 + 20 n = 400 + 10 n
    assert second["segments"][1]["from_tokens"] == 61
    assert figures["crossovers"]["first_token"] == [{"from_prompt_tokens": 62, "setup": "cpu"}]
    best = {use: ranking[0]["setup"] for use, ranking in figures["uses"].items()}
    assert best["a quick reply (64 tokens in, 30 out)"] == "cpu"
    assert best["a long answer (64 tokens in, 300 out)"] == "cpu:3"
    said = " ".join(capsys.readouterr().out.split())
    assert "cpu:3 (auto) from 31 tokens on" in said and f"Choose {figures['choice']['setup']}" in said


@pytest.mark.usefixtures("scripted")
def test_nothing_measured_is_an_error(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(pair), "--devices", "cpu:9"]) == 2
    said = capsys.readouterr().err
    assert "no device could run this pair" in said and "cpu:9: no room left" in said


@pytest.mark.usefixtures("scripted")
def test_ctrl_c_reports_what_was_measured(
    compare: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specdec_onnx.tui.compare import command as session

    def stop_at_the_second(plan: Plan, setup: Setup, *rest: Any) -> None:
        if setup.name == "cpu:3":
            raise KeyboardInterrupt
        real(plan, setup, *rest)

    real = session.run_setup
    monkeypatch.setattr(session, "run_setup", stop_at_the_second)
    figures = compare("--devices", "cpu,cpu:3,cpu:1", code=130)
    assert figures["choice"]["setup"] == "cpu" and figures["setups"]["cpu:1"]["lengths"] == []


def test_a_missing_provider_is_named_with_its_remedy(compare: Callable[..., dict[str, Any]]) -> None:
    from specdec_onnx.runtime.model.device import lacks

    if not lacks("dml"):
        pytest.skip("DirectML is installed here")
    figures = compare(
        "--devices", "cpu,dml", "--prompt-lengths", "64", "--max-new-tokens", "4", "--repeat", "1"
    )
    assert "specdec-onnx[directml]" in figures["setups"]["dml"]["problem"]
    assert figures["choice"]["setup"] == "cpu" and figures["choice"]["runner_up"] is None


@pytest.mark.parametrize(
    "options",
    [
        ["--devices", "gpu"],
        ["--devices", "cpu:0"],
        ["--devices", "cpu+"],
        ["--devices", "cpu+cpu+cpu"],
        ["--devices", "cpu:x"],
        ["--repeat", "0"],
        ["--max-new-tokens", "0"],
        ["--prompt-lengths", "4000"],
    ],
)
def test_impossible_options_are_refused(
    pair: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(pair), *options]) == 2
    assert capsys.readouterr().err


def test_more_threads_than_cores_are_reported_and_end_nothing(
    compare: Callable[..., dict[str, Any]],
) -> None:
    figures = compare(
        "--devices", "cpu:4096,cpu:1", "--prompt-lengths", "64", "--max-new-tokens", "4", "--repeat", "1"
    )
    assert figures["setups"]["cpu:4096"]["problem"].startswith("4096 threads are not possible")
    assert not figures["setups"]["cpu:1"]["problem"] and figures["choice"]["setup"] == "cpu:1"


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1", "1e300", "soon"])
def test_a_timeout_is_a_time(pair: Path, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["compare", str(pair), "--timeout", seconds])
    assert end.value.code == 2 and "argument --timeout" in capsys.readouterr().err


def test_a_missing_chart_library_is_reported_before_measuring(
    pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("specdec_onnx.tui.compare.page.find_spec", lambda name: None)
    assert main(["compare", str(pair), "--html", "report.html"]) == 2
    assert "specdec-onnx[report]" in capsys.readouterr().err


def test_setups_are_read_from_a_list_of_devices() -> None:
    assert read_setups("cpu, cpu:2,webgpu+cpu,webgpu+cpu:1,cpu") == [
        Setup("cpu", "cpu"),
        Setup("cpu:2", "cpu", threads=2),
        Setup("webgpu+cpu", "webgpu", "cpu"),
        Setup("webgpu+cpu:1", "webgpu", "cpu", 1),
    ]
    assert read_setups(default_setups())[0].device == "cpu"
    with pytest.raises(SpecdecError, match="abacus"):
        read_setups("cpu,abacus")


@pytest.mark.parametrize("length", [60, 64, 200, 3000])
def test_prompts_have_the_wanted_length(pair: Path, length: int) -> None:
    model = open_model(pair / "target")
    tokens = prompt_of(model, length)
    assert length - 5 < len(tokens) <= length


def test_a_question_too_long_for_the_length_is_asked_without_text(pair: Path) -> None:
    assert 0 < len(prompt_of(open_model(pair / "target"), 1)) < 60
