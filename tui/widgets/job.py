"""Downloading and exporting a pair, with its progress, above the prompt."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Button, ProgressBar, Static

from specdec_onnx.tui.services import Preparer

FRAMES = 10


class Stopped(Exception):
    """Raised inside the work, at its next report, when the reader gave it up."""


class JobBar(Horizontal):
    """Hidden until `get`; the work runs in a thread and only leaves its figures here."""

    @dataclass
    class Done(Message):
        """The pair lies in `folder`."""

        folder: Path

    @dataclass
    class Failed(Message):
        """The work ended with an error; what was downloaded stays and is not fetched again."""

        error: BaseException

    def __init__(self, prepare: Preparer, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._prepare = prepare
        self._latest = ("starting", 0, 0)
        self.running = False

    def compose(self) -> ComposeResult:
        """What is done, how far it is, and a way out."""
        yield Static("", id="job-text", markup=False)
        yield ProgressBar(total=None, show_eta=True, id="job-bar")
        yield Button("Cancel", compact=True, id="job-cancel")

    def on_mount(self) -> None:
        """Out of the way until there is work."""
        self.display = False
        self._timer = self.set_interval(1 / FRAMES, self._draw, pause=True)

    def get(self, name: str, folder: Path) -> bool:
        """Start; False while another pair is under way."""
        if self.running:
            return False
        self.running, self.display, self._latest = True, True, (f"getting {name}", 0, 0)
        self._timer.resume()
        self.run_worker(lambda: self._work(name, folder), thread=True, group="job", exit_on_error=False)
        return True

    def _work(self, name: str, folder: Path) -> None:
        try:
            self._prepare(name, folder, self._report)
            self._end(self.Done(folder))
        except Stopped:
            self._end(None)
        except Exception as error:  # noqa: BLE001 - it is shown, and the chat goes on
            self._end(self.Failed(error))

    def _report(self, what: str, done: int, total: int) -> None:
        if not self.running:
            raise Stopped
        self._latest = (what, done, total)

    def _end(self, message: Message | None) -> None:
        hide: Callable[[], None] = self._hide
        self.app.call_from_thread(hide)
        if message is not None:
            self.post_message(message)

    def _hide(self) -> None:
        self.running = self.display = False
        self._timer.pause()

    def _draw(self) -> None:
        what, done, total = self._latest
        self.query_one("#job-text", Static).update(what)
        bar = self.query_one("#job-bar", ProgressBar)
        bar.update(total=total or None, progress=done)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Give it up at the next report."""
        event.stop()
        self.running = False
        self._latest = ("stopping", 0, 0)
