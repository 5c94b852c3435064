"""The `specdec` command line: exit codes, messages, no tracebacks."""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from gguf import GGMLQuantizationType
from support.gguf_files import write_gguf
from support.tiny import export_model, export_tiny, tiny_checkpoint

from specdec_onnx import __version__
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.cli import main as cli

Install = Callable[[Callable[[argparse.Namespace], int]], None]


@pytest.fixture
def run_as(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a function of the test's own in the place of every command."""

    def install(run: Callable[[argparse.Namespace], int]) -> None:
        monkeypatch.setattr(cli, "import_module", lambda name: SimpleNamespace(run=run))
        monkeypatch.delenv("SPECDEC_DEBUG", raising=False)

    return install


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


def test_a_command_decides_the_exit_code(run_as: Install) -> None:
    run_as(lambda args: 7)
    assert cli.main(["demo"]) == 7


def test_user_errors_have_no_traceback(run_as: Install, capsys: pytest.CaptureFixture[str]) -> None:
    run_as(raising(SpecdecError("the file is torn", "it ends early", "download it again")))
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr() == ("", "the file is torn\n  why: it ends early\n  try: download it again\n")


def test_our_own_errors_say_how_to_see_more(run_as: Install, capsys: pytest.CaptureFixture[str]) -> None:
    run_as(raising(ZeroDivisionError("division by zero")))
    assert cli.main(["demo"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("ZeroDivisionError: division by zero\n") and "SPECDEC_DEBUG=1" in said


def test_a_missing_package_says_what_to_install(run_as: Install, capsys: pytest.CaptureFixture[str]) -> None:
    run_as(raising(ModuleNotFoundError("No module named 'rich'", name="rich")))
    assert cli.main(["demo"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("the package rich is not installed") and "specdec-onnx[all]" in said
    run_as(raising(ModuleNotFoundError("gone", name="specdec_onnx.tui.nonsense")))
    assert cli.main(["demo"]) == 1


def test_debug_shows_the_traceback(run_as: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    run_as(raising(SpecdecError("no")))
    monkeypatch.setenv("SPECDEC_DEBUG", "1")
    with pytest.raises(SpecdecError):
        cli.main(["demo"])


def test_an_interrupt_ends_with_code_130(run_as: Install) -> None:
    run_as(raising(KeyboardInterrupt()))
    assert cli.main(["demo"]) == 130


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == f"specdec-onnx {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["run"], ["bench", "pair", "--modes", "fast"]])
def test_wrong_usage_ends_with_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2 and "usage: specdec" in capsys.readouterr().err


@pytest.mark.parametrize(("redirection", "code"), [(">&-", 0), (">/dev/full", 1)])
def test_a_full_stdout_is_an_error_and_a_closed_one_is_not(redirection: str, code: int) -> None:
    line = f"{shlex.quote(sys.executable)} -m specdec_onnx.tui.cli.main doctor {redirection}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr and "SPECDEC_DEBUG" not in done.stderr
    assert ("cannot write" in done.stderr) == bool(code)


@pytest.mark.parametrize("command", ["run", "chat", "bench", "doctor", "demo"])
def test_help_says_what_the_defaults_are(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "0 means one per physical core (default)" in said
    assert ("(default: the model's own limit, or less where memory is scarce)" in said) == (command != "demo")


def test_doctor_says_that_the_embedding_table_stays_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    export_tiny(tmp_path / "model", format="fp32", vocab_size=1024)
    assert cli.main(["doctor", str(tmp_path / "model")]) == 0
    assert "embedding table, 0 MB: it stays in the file" in capsys.readouterr().out
    assert cli.main(["doctor", str(tmp_path / "model"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["memory"]["models"]["target"]
    assert found["left_in_file"] == 1024 * 64 * 4


def test_a_closed_pipe_is_quiet() -> None:
    code = (
        "import sys, types\n"
        "from specdec_onnx.tui.cli import main as cli\n"
        "def run(args):\n"
        "    while True: print('x' * 1000, flush=True)\n"
        "cli.import_module = lambda name: types.SimpleNamespace(run=run)\n"
        "sys.exit(cli.main(['demo']))"
    )
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None and writer.stderr is not None
    writer.stdout.read(10)
    writer.stdout.close()
    assert (writer.stderr.read(), writer.wait(timeout=30)) == (b"", 141)


def test_errors_show_control_characters(run_as: Install, capsys: pytest.CaptureFixture[str]) -> None:
    for error in (SpecdecError("a\x1b[2J", "b\x07", "c\x9b"), ValueError("\x1b]52;c;x\x07")):
        run_as(raising(error))
        assert cli.main(["demo"]) in (1, 2)
        assert not set("\x1b\x07\x9b") & set(capsys.readouterr().err)


def test_findings_about_odd_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    from specdec_onnx.tui.cli.doctor import tables
    from specdec_onnx.tui.cli.output import TableConsole

    machine = {"processor": "[/x]\x1b[2J", "cores": 1, "features": [], "memory_bytes": 1, "onnxruntime": "1"}
    machine["kernels"] = {"name": "", "absent": "[/y]"}
    devices = {"dml": {"lacks": "no [y]", "remedy": "pip install 'a[directml]'"}}
    model = {
        "kernels": "",
        "format": "\x9b",
        "weight_bytes": 1,
        "cache_bytes": 1,
        "nodes": {},
        "fallbacks": {},
        "device": "cpu",
    }
    pair = {"name": "[/red]", "identity": "bit-identical", "device": "cpu", "threads": 1, "draft_device": ""}
    pair |= {"context": 9, "modes": ["plain"], "forward_cost_ms": {"1": 1.0}, "draft_cost_ms": {}}
    pair |= {"models": {"target": model}}
    TableConsole().print(tables({"machine": machine, "devices": devices, "pair": pair}))
    said = capsys.readouterr().out
    assert all(text in said for text in ("[/x]", "[/red]", "no [y]", "a[directml]"))
    assert not set("\x1b\x9b") & set(said)


def test_doctor_warns_of_zero_points_that_only_our_kernels_multiply_fast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "x.gguf", tiny_checkpoint("llama"), kind=GGMLQuantizationType.Q4_1)
    folder = export_model(file, tmp_path / "model", format="gguf")
    for kernels, warned in (("auto", False), ("off", True)):
        monkeypatch.setenv("SPECDEC_KERNELS", kernels)
        assert cli.main(["doctor", str(folder)]) == 0
        assert ("times slower" in " ".join(capsys.readouterr().out.split())) == warned


def test_an_empty_pair_is_not_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", ""]) == 2
    assert "no pair at ''" in capsys.readouterr().err
