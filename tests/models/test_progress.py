"""Progress on stderr: one changing line in a terminal, a few lines elsewhere, nothing on stdout."""

import sys

import pytest

from specdec_onnx.models.progress import ProgressLine


def in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> ProgressLine:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    return ProgressLine()


def test_a_task_reports_each_tenth_once(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as progress:
        for done in range(1001):
            progress("download", done, 1000)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [f"{10 * tenth:3d} %  download" for tenth in range(11)]


def test_an_unknown_size_does_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as progress:
        progress("download", 0, 0)
    assert capsys.readouterr().err == "  0 %  download\n"


def test_tasks_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as progress:
        progress("a", 1, 2)
        progress("b", 1, 2)
    assert capsys.readouterr().err == " 50 %  a\n 50 %  b\n"


def test_a_terminal_has_one_line_that_is_cleared_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_a_terminal(monkeypatch) as progress:
        progress("target: layer 10", 1, 4)
        progress("target", 2, 4)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"\r 25 %  target: layer 10\r{' 50 %  target':23}\r{'':13}\r")


def test_a_line_that_would_wrap_is_cut_and_control_characters_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_terminal(monkeypatch)("\x1b" + "x" * 50, 1, 1)
    assert capsys.readouterr().err == "\r100 %  ␛" + "x" * 21
