"""`specdec-export` as people type it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.tiny import tiny_checkpoint

from specdec_onnx.export import cli, sources
from specdec_onnx.export.graph import transformer
from specdec_onnx.models.catalog import CatalogFile, catalog
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import open_pair

BIG, SMALL = tiny_checkpoint(num_hidden_layers=2), tiny_checkpoint(num_hidden_layers=1)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with big.gguf and small.gguf, which open as tiny checkpoints."""
    known = {"big.gguf": BIG, "small.gguf": SMALL, "broken.gguf": replace(BIG, tensors={})}
    for name in known:
        (tmp_path / name).write_bytes(b"GGUF")
    monkeypatch.setattr("specdec_onnx.export.pipeline.open_checkpoint", lambda path: known[Path(path).name])
    return tmp_path


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


def test_a_target_and_a_draft_become_a_pair(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = files / "pair"
    assert (
        run(
            files / "big.gguf",
            "--draft",
            files / "small.gguf",
            "-o",
            out,
            "--trim",
            300,
            "--draft-format",
            "int8",
        )
        == 0
    )
    pair = open_pair(out)
    assert pair.draft is not None
    assert pair.draft.trimmed_vocabulary is not None
    assert pair.draft.facts["format"] == "int8-32"
    said = capsys.readouterr()
    assert "KL to fp32" in said.out
    assert "100 %" in said.err


def test_a_single_model_is_exported_without_measuring(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = files / "model"
    assert (
        run(files / "big.gguf", "-o", out, "--target-format", "int4-64", "--context", 100, "--no-measure")
        == 0
    )
    model = open_pair(out).target
    assert (model.facts["format"], model.facts["context_length"]) == ("int4-64", 100)
    assert "KL" not in capsys.readouterr().out


def test_force_replaces(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (files / "big.gguf", "-o", files / "model", "--no-measure")
    assert run(*words) == 0
    assert run(*words) == 2
    assert "--force" in capsys.readouterr().err
    assert run(*words, "--force", "--target-format", "fp32") == 0
    assert open_pair(files / "model").target.facts["format"] == "fp32"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.gguf"], "there is no nothing.gguf"),
        (["broken.gguf"], "the source lacks tensor"),
        (["big.gguf", "--draft", "nowhere"], "there is no nowhere"),
        (["big.gguf", "--target-format", "q4"], "unknown format 'q4'"),
    ],
)
def test_errors_are_short_and_leave_nothing(
    words: list[str],
    message: str,
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(files)
    before = set(files.iterdir())
    assert run(*words, "-o", "out", "--no-measure") == 2
    said = capsys.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    assert set(files.iterdir()) == before


@pytest.mark.parametrize("words", [["--trim", "0"], ["--trim", "some"], ["--context", "-1"]])
def test_bad_numbers_are_usage_errors(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("big.gguf", "-o", "out", *words)
    assert caught.value.code == 2
    assert "positive whole number" in capsys.readouterr().err


def test_a_format_is_checked_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sources, "fetch", lambda *_: pytest.fail("fetched"))
    assert run("smollm2-135m", "-o", tmp_path / "out", "--target-format", "int5") == 2
    assert "unknown format 'int5'" in capsys.readouterr().err


def test_an_empty_folder_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("big.gguf", "-o", "")
    assert caught.value.code == 2
    assert run("inspect", "nowhere") == 2
    assert "there is no folder nowhere" in capsys.readouterr().err


def test_an_interrupt_is_quiet(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specdec_onnx.export.graph.transformer._DecoderBuilder._head", interrupt)
    assert run(files / "big.gguf", "-o", files / "out") == 130
    assert not (files / "out").exists()
    assert not list(files.glob(".out*"))


def test_catalog_names_bring_their_draft(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fetch(file: CatalogFile, progress: Callable[[str, int, int], None] | None = None) -> Path:
        return Path(file.name)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "fetch", fetch)
    entry, (single, *_) = catalog()["qwen2.5-coder-1.5b"], [e for e in catalog().values() if e.draft is None]
    assert entry.draft is not None
    pair = (Path(entry.target.name), Path(entry.draft.name))
    assert sources.resolve(entry.name, None, print) == pair
    assert sources.resolve(entry.name, "none", print) == (pair[0], None)
    assert sources.resolve(single.name, None, print) == (Path(single.target.name), None)
    assert sources.resolve(entry.name, single.name, print) == (pair[0], Path(single.target.name))
    with pytest.raises(SpecdecError, match="there is no"):
        sources.resolve("qwen9", None, print)


def test_a_taken_folder_is_refused_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sources, "fetch", lambda *_: pytest.fail("fetched"))
    (tmp_path / "letter.txt").write_text("dear")
    assert run("smollm2-135m", "-o", tmp_path) == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_tilde_after_an_equals_sign_is_the_home_folder(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(files))
    monkeypatch.chdir(files)
    assert run(files / "big.gguf", "--output=~/model", "--no-measure") == 0
    assert (files / "model" / "specdec.json").is_file() and not (files / "~").exists()
    assert run("inspect", "~/model") == 0


def test_inspecting_half_of_a_pair_names_the_pair(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = files / "pair"
    assert run(files / "big.gguf", "--draft", files / "small.gguf", "-o", out, "--no-measure") == 0
    assert run("inspect", out / "draft") == 2
    assert f"specdec-export inspect {out}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "report", ['{"export_seconds": 1}', '{"target": 1}', '{"size_bytes": [], "format": 3}', '{"draft": {}}']
)
def test_a_damaged_report_is_one_clear_error(
    report: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.json").write_text(report)
    assert run("inspect", tmp_path) == 2
    assert "report.json is damaged" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize(("name", "ignored"), [("SIGTERM", False), ("SIGHUP", False), ("SIGHUP", True)])
def test_a_signal_to_end_leaves_nothing_unless_it_is_ignored(
    name: str, ignored: bool, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = getattr(signal, name)
    former = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    build = transformer._DecoderBuilder._head

    def head(*given: object) -> object:
        signal.raise_signal(number)
        return build(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(transformer._DecoderBuilder, "_head", head)
    try:
        signal.signal(number, signal.SIG_IGN if ignored else signal.default_int_handler)
        if ignored:
            assert run(files / "big.gguf", "-o", files / "out", "--no-measure") == 0
        else:
            with pytest.raises(SystemExit) as caught:
                run(files / "big.gguf", "-o", files / "out", "--no-measure")
            assert caught.value.code == 128 + number
            assert not list(files.glob("*out*"))
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)


def test_help_is_light() -> None:
    code = "import sys; from specdec_onnx.export import cli; cli.build_parser().format_help(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "onnx", "onnxruntime", "gguf", "tokenizers", "jinja2"} & set(loaded)


def test_messages_and_reports_show_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "\x1b]52;c;x\x07\x9b2J") == 2
    assert "there is no folder" in (said := capsys.readouterr().err) and not set("\x1b\x07\x9b") & set(said)


@pytest.mark.skipif(sys.platform == "win32", reason="redirections of Unix")
@pytest.mark.parametrize(
    ("words", "redirection", "code", "said"),
    [
        ("inspect {}", ">&-", 0, ""),
        ("inspect {}", ">/dev/full", 1, "cannot write"),
        ("inspect nowhere", "2>&-", 2, ""),
    ],
)
def test_output_that_cannot_be_written_ends_without_a_traceback(
    words: str, redirection: str, code: int, said: str, files: Path
) -> None:
    assert run(files / "big.gguf", "-o", files / "model", "--no-measure") == 0
    program = f"{sys.executable} -m specdec_onnx.export.cli {words.format(files / 'model')}"
    line = f"{program} {redirection}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert said in done.stderr and "Traceback" not in done.stderr and "SPECDEC_DEBUG" not in done.stderr
    assert (done.stdout, done.returncode) == ("", code)


def test_a_closed_pipe_is_quiet(files: Path) -> None:
    assert run(files / "big.gguf", "-o", files / "model", "--no-measure") == 0
    ours, theirs = os.pipe()
    os.close(ours)
    program = [sys.executable, "-m", "specdec_onnx.export.cli", "inspect", str(files / "model")]
    done = subprocess.run(program, stdout=theirs, stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_missing_package_says_what_to_install(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "run", lambda args: __import__("gguf_that_is_missing"))
    assert run(files / "big.gguf", "-o", files / "model") == 2
    assert "gguf_that_is_missing is not installed" in capsys.readouterr().err
