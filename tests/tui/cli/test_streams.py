"""What the commands read and write, with real pipes, files and terminals."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.scripted_engine import ANSWER
from support.terminal import at_a_terminal, environment, scripted

from specdec_onnx.models.text import printable
from specdec_onnx.tui.cli.streams import as_json

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="terminals and file descriptors of Unix")

EVIL = "a\x1b]52;c;eA==\x07b\x1b]8;;http://x\x1b\\c\x1b[31md\x9b2Je\x7f\x08f"
SAYS_EVIL = f"""
scripted._steps_before = scripted._steps
from dataclasses import replace
def steps(words, mode, wanted):
    found = list(scripted._steps_before(words, mode, wanted))[-1]
    for letter in {EVIL!r}:
        yield replace(found, text=letter, tokens=(1,), finish_reason=None)
    yield replace(found, text="", tokens=())
    scripted.last.text = {EVIL!r}
scripted._steps = steps
"""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair").mkdir()
    return tmp_path / "pair"


def run(*words: str, setup: str = "", **options: object) -> "subprocess.CompletedProcess[bytes]":
    options = {"stdin": subprocess.DEVNULL, "env": environment()} | options
    command = scripted("run", "pair", *words, setup=setup)
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **options)  # type: ignore[call-overload]


TELL_PROMPT = "import atexit; atexit.register(lambda: print([call.prompt for call in scripted.calls]))"


def test_a_question_does_not_wait_for_a_pipe_that_stays_open(pair: Path) -> None:
    held, other = os.pipe()
    try:
        done = run("question", stdin=held)
    finally:
        os.close(held)
        os.close(other)
    assert (done.returncode, done.stdout.decode()) == (0, ANSWER + "\n")
    assert b"stdin" not in done.stderr


def test_within_a_second_one_hears_that_stdin_is_awaited(pair: Path) -> None:
    held, other = os.pipe()
    process = subprocess.Popen(
        scripted("run", "pair", setup="import os; os.write(2, b'begins\\n')"),
        stdin=held,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    os.close(held)
    assert process.stderr is not None and process.stderr.readline() == b"begins\n"
    start = time.monotonic()
    said = process.stderr.readline()
    assert said.startswith(b"waiting for the end of the text on stdin") and time.monotonic() - start < 2
    os.write(other, b"question")
    os.close(other)
    assert process.wait(60) == 0
    process.stderr.close()


@pytest.mark.parametrize(
    "loop", ["while read l; do {}; done <lines", "cat lines | while read l; do {}; done"]
)
def test_a_loop_keeps_its_lines(loop: str, pair: Path) -> None:
    Path("lines").write_text("one\ntwo\nthree\n")
    Path("specdec.py").write_text(scripted(setup=TELL_PROMPT)[2])
    line = loop.format(f'{sys.executable} specdec.py run pair "$l"')
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, env=environment(), timeout=120, check=True
    )
    assert [said for said in done.stdout.decode().splitlines() if said[0] == "["] == [
        "['one']",
        "['two']",
        "['three']",
    ]


@pytest.mark.parametrize("by_file", [True, False])
def test_text_on_stdin_that_is_not_read_is_mentioned(by_file: bool, pair: Path) -> None:
    Path("text").write_text("text\n")
    with Path("text").open() as file:
        done = run("question", **({"stdin": file} if by_file else {"stdin": None, "input": b"text\n"}))
    assert done.returncode == 0 and done.stderr.startswith(
        b"the text on stdin is not read: add a - to PROMPT"
    )
    assert done.stderr.count(b"stdin") == 1


def test_a_file_that_others_read_is_nothing_to_mention(pair: Path) -> None:
    Path("text").write_text("one\ntwo\n")
    with Path("text").open("rb", buffering=0) as file:
        file.read(4)
        assert b"stdin" not in run("question", stdin=file).stderr


def test_a_terminal_shows_control_characters(pair: Path) -> None:
    for words in (["question"], ["question", "--json"]):
        code, sent = at_a_terminal(scripted("run", "pair", *words, setup=SAYS_EVIL))
        assert code == 0 and not set("\x1b\x07\x08\x7f\x9b") & set(sent.decode())
    code, sent = at_a_terminal(scripted("run", "pair", "question", setup=SAYS_EVIL))
    assert printable(EVIL) in sent.decode()


def test_a_pipe_gets_what_the_model_said(pair: Path) -> None:
    assert run("question", setup=SAYS_EVIL).stdout.decode() == EVIL + "\n"
    assert json.loads(run("question", "--json", setup=SAYS_EVIL).stdout)["text"] == EVIL


def test_the_demo_shows_control_characters_too() -> None:
    command = scripted("demo", "--prompt", "p\x1b]52;c;x\x07", setup=SAYS_EVIL)
    code, sent = at_a_terminal(command)
    assert code == 0 and printable(EVIL).encode() in sent
    assert b"\x1b]" not in sent and b"\x07" not in sent and b"\xc2\x9b" not in sent


def test_json_is_readable_and_hides_nothing() -> None:
    value = {"é\u202e": ["\x9b\x7f", "\ud83d", "\x1b"]}
    text = as_json(value)
    assert json.loads(text) == value and "é" in text
    assert not set("\u202e\x9b\x7f\ud83d\x1b") & set(text)


def test_a_long_prompt_shows_progress_on_a_terminal_and_cleans_up(pair: Path) -> None:
    slow = (
        "import time\n"
        "def read(progress):\n    time.sleep(.8); progress(128, 256); time.sleep(.2); progress(256, 256)\n"
        "scripted.read_prompt = read"
    )
    code, sent = at_a_terminal(scripted("run", "pair", "question", setup=slow))
    before, _, after = sent.decode().partition(ANSWER)
    assert code == 0 and "reading the prompt: 50 % of 256 tokens" in before and "reading" not in after
    assert before.endswith("\r") and before.split("\r")[-2].strip() == ""


def test_elsewhere_a_long_prompt_says_one_line(pair: Path) -> None:
    slow = (
        "import time\nfrom specdec_onnx.tui.cli import run\nrun.PATIENCE_ELSEWHERE = 0.3\n"
        "def read(progress):\n    progress(128, 256); time.sleep(.8); progress(256, 256)\n"
        "scripted.read_prompt = read"
    )
    done = run("question", setup=slow)
    assert done.stdout.decode() == ANSWER + "\n"
    assert done.stderr.decode().splitlines()[:-1] == ["reading the prompt: 50 % of 256 tokens"]


def test_a_short_prompt_says_nothing(pair: Path) -> None:
    assert b"reading" not in run("question").stderr


def test_a_locale_without_utf_8_changes_no_text(pair: Path) -> None:
    changed = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    says = f"{TELL_PROMPT}; scripted.answers['auto'] = 'gr\\xf6\\xdfer'"
    done = run("é", "-", "--system", "ü", setup=says, env=changed, stdin=None, input="ß€".encode())
    assert (done.returncode, done.stdout.decode()) == (0, "größer\n['é\\n\\nß€']\n")


@pytest.mark.parametrize(
    ("redirection", "out"), [("2>&-", ANSWER), ("<&-", ANSWER), ("2>/dev/full", ANSWER), ("<&- >&- 2>&-", "")]
)
def test_closed_or_full_streams_raise_nothing(redirection: str, out: str, pair: Path) -> None:
    Path("specdec.py").write_text(scripted()[2])
    line = f"{sys.executable} specdec.py run pair question {redirection}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, env=environment(), timeout=60, check=False
    )
    assert done.stdout.decode().strip() == out and b"Traceback" not in done.stderr


def test_a_dash_without_a_stdin_is_no_prompt(pair: Path) -> None:
    Path("specdec.py").write_text(scripted()[2])
    line = f"{sys.executable} specdec.py run pair - <&-"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, env=environment(), timeout=60, check=False
    )
    assert done.returncode == 2 and b"there is no prompt" in done.stderr


def test_a_prompt_can_be_typed_at_a_terminal(pair: Path) -> None:
    code, sent = at_a_terminal(scripted("run", "pair", "-", setup=TELL_PROMPT), typed=b"typed\n\x04")
    assert code == 0 and b"Ctrl-D ends it" in sent and b"['typed']" in sent


def test_an_interrupt_while_loading_is_quiet(pair: Path) -> None:
    load = "import signal\ndef load(path, **options): signal.raise_signal(signal.SIGINT)\nengine.load = load"
    done = run("question", setup=load)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


PROGRAM = f"{sys.executable} -m specdec_onnx.tui.cli.main"


def in_bash(line: str, **changes: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        capture_output=True,
        env=environment(**changes),
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "run --help", "--version"])
def test_help_that_cannot_be_written_is_an_error(words: str, unbuffered: str) -> None:
    for module in ("tui.cli.main", "export.cli"):
        if module == "export.cli" and words != "--help":
            continue
        line = f"{sys.executable} -m specdec_onnx.{module} {words} >/dev/full"
        done = in_bash(line, PYTHONUNBUFFERED=unbuffered)
        assert done.returncode == 1 and b"cannot write" in done.stderr and b"Traceback" not in done.stderr


def test_tables_into_a_closed_pipe_end_as_any_output_does() -> None:
    line = f"{PROGRAM} doctor | true"
    assert in_bash(line).returncode == 141
    assert in_bash(line.replace("doctor", "doctor --json")).returncode == 141


@pytest.mark.parametrize(
    ("words", "redirection", "code", "said"),
    [
        ("question", "1</dev/null", 2, "cannot write to stdout"),
        ("-", "0>/dev/null", 2, "there is no prompt"),
        ("question", "2</dev/null", 0, ""),
    ],
)
def test_a_stream_opened_the_wrong_way_is_one_clear_error(
    words: str, redirection: str, code: int, said: str, pair: Path
) -> None:
    Path("specdec.py").write_text(scripted()[2])
    done = in_bash(f"{sys.executable} specdec.py run pair {words} {redirection}")
    assert done.returncode == code and said in done.stderr.decode() and b"SPECDEC_DEBUG" not in done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ('RuntimeError("can\'t start new thread")', "no further thread"),
        ("MemoryError()", "not enough memory"),
        ("OSError(12, 'Cannot allocate memory')", "not enough memory"),
        ("RuntimeError('std::bad_alloc')", "not enough memory"),
    ],
)
def test_a_system_that_gives_no_more_says_what_is_lacking(error: str, said: str, pair: Path) -> None:
    done = run("question", setup=f"def load(path, **options): raise {error}\nengine.load = load")
    assert done.returncode == (1 if "OSError" in error else 2)  # a full disk, an OSError, ends so too
    assert said in done.stderr.decode() and b"ulimit" in done.stderr
