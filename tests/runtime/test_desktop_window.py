"""The desktop window that the README links to, in a real window on a virtual screen."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.tiny import export_tiny_pair

from specdec_onnx.runtime.engine import Engine, load

tkinter = pytest.importorskip("tkinter", reason="this Python has no tkinter")


@pytest.fixture(scope="module")
def screen() -> Iterator[None]:
    """A display: the one there is, or a virtual one."""
    if os.environ.get("DISPLAY"):
        yield
        return
    if not shutil.which("Xvfb"):
        pytest.skip("no display and no Xvfb (Debian: apt-get install xvfb)")
    reading, writing = os.pipe()
    command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "800x600x24"]
    server = subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.DEVNULL)
    number = os.read(reading, 16).decode().strip()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISPLAY", f":{number}")
        yield
    server.terminate()
    server.wait()


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """A tiny pair whose target takes its time, as a large one would."""
    engine = load(export_tiny_pair(tmp_path / "pair", seed=5))
    forward = engine.target.forward

    def slowly(tokens: list[int], *, keep: int = 0) -> object:
        time.sleep(0.01)
        return forward(tokens, keep=keep)

    engine.target.forward = slowly  # type: ignore[assignment,method-assign]
    return engine


def until(window: "tkinter.Tk", reached: Callable[[], bool]) -> int:
    """Run the event loop until `reached`; how many times it came round."""
    turns = 0
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        window.update()
        turns += 1
    return turns


def test_the_window_streams_and_stops(screen: None, engine: Engine) -> None:
    from examples.desktop_window import Window

    window = Window(engine)
    window.question.insert(0, "tell me a story")
    window.ask()
    turns = until(window, lambda: len(engine.last.tokens) > 20)
    assert turns > 20
    assert window.answer.get("1.0", "end").strip()
    window.stop.invoke()
    until(window, lambda: str(window.stop["state"]) == "disabled")
    assert window.status["text"].startswith("cancelled")
    assert len(engine.last.tokens) < 400
    assert window.chat.messages[-1]["content"] == engine.last.text
    window.destroy()
