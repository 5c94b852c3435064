"""Progress where there is no terminal: a few plain lines on stderr, nothing on stdout."""

import pytest

from specdec_onnx.tui.progress import steps_on_stderr, work_on_stderr


def test_a_task_reports_each_tenth_once(capsys: pytest.CaptureFixture[str]) -> None:
    with work_on_stderr() as report:
        for done in range(1001):
            report("download", done, 1000)
    said = capsys.readouterr()
    assert said.out == "" and said.err.splitlines() == [f"download: {10 * tenth} %" for tenth in range(11)]


def test_an_unknown_size_does_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    with work_on_stderr() as report:
        report("download", 0, 0)
    assert capsys.readouterr().err == "download: 0 %\n"


def test_tasks_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with work_on_stderr() as report:
        report("a", 1, 2)
        report("b", 1, 2)
    assert capsys.readouterr().err == "a: 50 %\nb: 50 %\n"


def test_steps_leave_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with steps_on_stderr(2) as advance:
        advance("first")
        advance("second")
    assert capsys.readouterr().out == ""
