"""The chat in a real terminal: start, ask, paste, stop, leave, come back; and what it adds to Textual's driver."""

import os
import select
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

import pytest
from support.smol import smol
from textual import events

from specdec_onnx.tui.chat.history.store import Store
from specdec_onnx.tui.chat.session import Piece
from specdec_onnx.tui.chat.terminal import PasteParser, Writer

__all__ = ["smol"]

needs_tmux = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed (apt install tmux)"
)


def keys_and_pastes(parser: PasteParser, *parts: str) -> list[str]:
    """What an app is told; pastes in <>."""
    told = [event for part in parts for event in (*parser.feed(part), *parser.tick())]
    return [f"<{e.text}>" if isinstance(e, events.Paste) else getattr(e, "key", "") for e in told]


COLOURED = "a\x1b[31mred\x1b[0m\x1b\n\x1b[200~\x1b"


@pytest.mark.parametrize("size", [1, 2, 5, 7, 4096])
def test_a_paste_keeps_its_escape_characters_however_it_arrives(size: int) -> None:
    arriving = f"x\x1b[200~{COLOURED}\x1b[201~y\x1b[200~\x1b[201~\x1b[A\x1b[200~two\0\x1b[201~\x1b[B"
    parts = [arriving[at : at + size] for at in range(0, len(arriving), size)]
    told = keys_and_pastes(PasteParser(), *parts)
    assert told == ["x", f"<{COLOURED}>", "y", "<>", "up", "<two>", "down"]


def test_keys_that_spell_the_mark_of_a_paste_are_keys() -> None:
    parser = PasteParser()
    assert keys_and_pastes(parser, "\x1b") == []
    time.sleep(0.3)  # longer than an escape sequence takes to arrive
    assert [getattr(event, "key", "") for event in parser.tick()] == ["escape"]
    assert keys_and_pastes(parser, "[200~z")[-1] == "z"


class Hung:
    """A file on a terminal that is gone."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def flush(self) -> None: ...


def test_writing_to_a_terminal_that_is_gone_never_blocks() -> None:
    writer = Writer(cast(IO[str], Hung()))
    writer.start()
    for _ in range(200):
        writer.write("x")
    writer.stop()


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.socket = str(home / "tmux")

    def tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self.socket, *words], capture_output=True, text=True, check=False
        )
        return done.stdout

    def start(self, *words: str) -> None:
        command = shlex.join([sys.executable, "-m", "specdec_onnx.tui.cli.main", "chat", *words])
        environment = [
            f"SPECDEC_HOME={self.home}",
            f"SPECDEC_CACHE={self.home}/cache",
            "TERM=screen-256color",
        ]
        line = shlex.join(["env", *environment]) + f" {command}; echo left with $?; sleep 600"
        self.tmux("-f", os.devnull, "new-session", "-d", "-x", "100", "-y", "30", line)
        while not self.tmux("list-sessions"):  # a server that is still going takes the new session with it
            time.sleep(0.1)
            self.tmux("-f", os.devnull, "new-session", "-d", "-x", "100", "-y", "30", line)

    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def until(self, condition: Callable[[str], bool], seconds: float = 120) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition(shown := self.text()):
                return shown
            time.sleep(0.1)
        raise AssertionError(f"not seen in time; the terminal shows:\n{self.text()}")

    def stop(self) -> None:
        self.tmux("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.stop()


@pytest.mark.integration
@needs_tmux
def test_a_conversation_survives_being_stopped_and_left(terminal: Terminal, smol: Path) -> None:
    terminal.start(str(smol))
    terminal.until(lambda text: "Enter sends" in text)
    terminal.keys("-l", "Write a long story about a river")
    terminal.keys("C-j")
    terminal.keys("-l", "and count to one hundred in it.")
    terminal.keys("Enter")
    terminal.until(lambda text: " tok/s · " in text and "first token" in text)
    terminal.keys("Escape")
    shown = terminal.until(lambda text: "stopped" in text)
    answer = [line for line in shown.splitlines() if len(line.split()) > 5 and "tok" not in line][-1].strip()
    terminal.keys("C-q")
    terminal.until(lambda text: "left with 0" in text)
    terminal.stop()

    terminal.start(str(smol))
    terminal.until(lambda text: "Enter sends" in text)
    terminal.keys("C-f")
    terminal.until(lambda text: "Write a long story about a river" in text)
    terminal.keys("-l", "one hundred")
    terminal.keys("Enter")
    shown = terminal.until(lambda text: "stopped" in text and "Enter opens" not in text)
    assert " ".join(answer.split()[:4]) in " ".join(shown.split())


@pytest.mark.integration
@needs_tmux
def test_pasted_bytes_that_are_no_text_do_not_end_the_chat(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "latin-1").write_bytes(b"caf\xe9 \xff\xfe and more")
    terminal.start()
    terminal.until(lambda text: "Enter sends" in text)
    terminal.tmux("load-buffer", str(tmp_path / "latin-1"))
    terminal.tmux("paste-buffer", "-p")
    terminal.until(lambda text: "caf� �� and more" in text)


@pytest.mark.integration
@needs_tmux
def test_an_answer_cannot_command_the_terminal(terminal: Terminal) -> None:
    evil = "a\x1b[31mred\x1b]0;owned\x07\x1b]52;c;aGk=\x07 <http://x/%1b]0;owned%07>"
    store = Store(terminal.home / "history.sqlite3")
    made = store.create(evil, "", {})
    asked = store.add(made.id, None, "user", evil)
    said = store.add(made.id, asked.id, "assistant")
    pieces = [Piece(evil, "draft"), Piece("\x1b]0;owned\x07", "rejected"), Piece("!", "target")]
    store.update(said.id, evil, "eos", pieces, {"tokens_by_round": [2]})
    store.close()
    terminal.start("--continue")
    shown = terminal.until(lambda text: "http://x/␛]0;owned␇" in text)
    assert shown.count("a␛[31mred␛]0;owned␇␛]52;c;aGk=␇") >= 2
    for _ in range(2):
        terminal.keys("F3")
    terminal.until(lambda text: "␛]0;owned␇!" in text)
    terminal.keys("C-f")
    terminal.until(lambda text: "History" in text)
    assert "owned" not in terminal.tmux("display-message", "-p", "#{pane_title}")
    assert terminal.tmux("list-buffers") == ""


@pytest.mark.integration
@needs_tmux
def test_a_coloured_log_is_pasted_as_it_is(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one \x1b[31mred\x1b[0m\ntwo \x1b[1;32mgreen\x1b[0m end")
    terminal.start()
    terminal.until(lambda text: "Enter sends" in text)
    terminal.tmux("load-buffer", str(tmp_path / "log"))
    terminal.tmux("paste-buffer", "-p")
    shown = terminal.until(lambda text: "m end" in text)
    assert "two ␛[1;32mgreen␛[0m end" in shown and "one ␛[31mred␛[0m" in shown


@pytest.mark.integration
@pytest.mark.parametrize("ending", ["SIGTERM", "SIGHUP", "window"])
def test_a_chat_that_is_ended_saves_its_answer_and_leaves_the_terminal_as_it_was(
    tmp_path: Path, smol: Path, ending: str
) -> None:
    termios, pty = pytest.importorskip("termios"), pytest.importorskip("pty")
    pid, fd = pty.fork()
    if pid == 0:
        os.environ |= {"SPECDEC_HOME": str(tmp_path), "TERM": "xterm-256color"}
        os.execv(sys.executable, [sys.executable, "-m", "specdec_onnx.tui.cli.main", "chat", str(smol)])
    before = termios.tcgetattr(fd)
    read_until(fd, b"you can start typing")
    os.write(fd, b"Count from one to one hundred in words\r")
    read_until(fd, b"tok/s")
    if ending == "window":
        os.close(fd)
    else:
        os.kill(pid, getattr(signal, ending))
        read_until(fd, b"\x1b[?1049l")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 128 + (signal.SIGTERM if ending == "SIGTERM" else signal.SIGHUP)
    if ending != "window":
        assert termios.tcgetattr(fd) == before
    with sqlite3.connect(tmp_path / "history.sqlite3") as history:
        text, reason = history.execute("SELECT text, reason FROM turn WHERE role = 'assistant'").fetchone()
    assert text and reason == "cancelled"


def read_until(fd: int, wanted: bytes, seconds: float = 120) -> bytes:
    """What a program wrote to its terminal until it wrote this."""
    shown, end = b"", time.monotonic() + seconds
    while wanted not in shown:
        assert time.monotonic() < end, shown[-2000:]
        if select.select([fd], [], [], 0.1)[0]:
            shown += os.read(fd, 1 << 16)
    return shown
