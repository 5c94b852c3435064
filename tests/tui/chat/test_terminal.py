"""The chat in a real terminal with a real model: start, ask, stop, leave, come back."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.smol import smol

from specdec_onnx.tui.chat.history.store import Store
from specdec_onnx.tui.chat.session import Piece

__all__ = ["smol"]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt install tmux)"),
]


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


def test_pasted_bytes_that_are_no_text_do_not_end_the_chat(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "latin-1").write_bytes(b"caf\xe9 \xff\xfe and more")
    terminal.start()
    terminal.until(lambda text: "Enter sends" in text)
    terminal.tmux("load-buffer", str(tmp_path / "latin-1"))
    terminal.tmux("paste-buffer", "-p")
    terminal.until(lambda text: "caf� �� and more" in text)


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
