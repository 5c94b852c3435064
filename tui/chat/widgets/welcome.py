"""The empty page: what this is, and on a machine without a model the offer to get one."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Button, OptionList, ProgressBar, Static
from textual.widgets.option_list import Option

from specdec_onnx.tui.chat.inventory import describe, gigabytes, local_pairs, offered
from specdec_onnx.tui.chat.services import Preparer, Services
from specdec_onnx.tui.text import on_one_line, percent, printable

READY = (
    "Every word comes from the large model. The small one and the text so far only guess ahead, so it comes sooner.\n"
    "F3 shows who guessed what · F5 compares both speeds · F1 all keys"
)
NO_MODEL = (
    "No model is on this machine yet. Choose one to download and prepare; after that everything works offline.\n"
    "Tab goes to the list, Enter starts. You can also open a folder of your own: specdec chat FOLDER"
)
MEASURING = "Opened here for the first time: how fast it is on this machine is measured now, only this once."


class Welcome(Vertical):
    """Shown while the conversation is empty."""

    @dataclass
    class Chosen(Message):
        """A catalog entry was picked."""

        name: str

    def __init__(self, services: Services, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.services = services

    def compose(self) -> ComposeResult:
        """A heading, a text, and a list that is there only when it is needed."""
        yield Static("specdec", id="welcome-name")
        yield Static("faster, and never a different token", id="welcome-motto")
        yield Static("", id="welcome-text", markup=False)
        yield OptionList(id="welcome-list")

    def on_mount(self) -> None:
        """Say what fits this machine."""
        self.refresh_text()

    def refresh_text(self) -> None:
        """After a pair was opened or got, say something else."""
        state = self.services.engine.state
        empty = not state.pair and self.first_choice() is None
        text = NO_MODEL if empty else READY
        if state.measuring:
            text += f"\n{MEASURING}"
        if state.session is not None:
            text += (
                f"\nSelf-test on {state.session.device}, speculative against plain: {state.session.exactness}"
            )
        self.query_one("#welcome-text", Static).update(printable(text))
        entries = self.query_one(OptionList)
        entries.display = empty
        if empty and not entries.option_count:
            entries.add_options([Option(line, id=name) for name, line in offered().items()])
            entries.highlighted = 0

    def first_choice(self) -> str | None:
        """The pair to open at the start: the one asked for, the last one used, or the first that works."""
        if self.services.extra_pairs:
            return str(self.services.extra_pairs[0])
        last = self.services.preferences.model
        if last and not describe(Path(last)).problem:
            return last
        return next((str(pair.path) for pair in local_pairs() if not pair.problem), None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Pass the choice on."""
        event.stop()
        if event.option_id:
            self.post_message(self.Chosen(event.option_id))


FRAMES = 10
BYTES = 1 << 20
"""A total from here on is one of bytes: no work has so many steps."""
WIDE = 76
"""Cells from which on there is room for all figures."""
SECONDS = 5.0
"""The speed is that of this long."""
SHORTEST = 0.5
"""Seconds without which there is no speed yet."""


class Stopped(Exception):
    """Raised inside the work, at its next report, when the reader gave it up."""


class Pace:
    """How fast one thing after the other is done."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._what = ""
        self._seen = deque[tuple[float, int]]()

    def figures(self, what: str, done: int, total: int, *, short: bool = False) -> str:
        """`412 MB of 1.1 GB · 12 MB/s · 0:58 left`, short `37 % · 12 MB/s`; of steps `5 of 24`; before there is a
        total, nothing."""
        if not total:
            return ""
        if total < BYTES:
            return f"{done} of {total}"
        speed = self._speed(what, done)
        parts = [percent(done / total) if short else f"{gigabytes(done)} of {gigabytes(total)}"]
        if speed > 0 and done < total:
            minutes, seconds = divmod(int((total - done) / speed), 60)
            parts += [f"{gigabytes(int(speed))}/s", *([] if short else [f"{minutes}:{seconds:02} left"])]
        return " · ".join(parts)

    def _speed(self, what: str, done: int) -> float:
        now = self._clock()
        if what != self._what or (self._seen and done < self._seen[-1][1]):
            self._what = what
            self._seen.clear()
        self._seen.append((now, done))
        while now - self._seen[0][0] > SECONDS and len(self._seen) > 2:
            self._seen.popleft()
        since, before = self._seen[0]
        return (done - before) / (now - since) if now - since >= SHORTEST else 0.0


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

    class GivenUp(Message):
        """The work was cancelled."""

    def __init__(self, prepare: Preparer, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._prepare = prepare
        self._latest = ("starting", 0, 0)
        self._pace = Pace()
        self.running = False

    def compose(self) -> ComposeResult:
        """What is done, how far it is, and a way out."""
        yield Static("", id="job-text", markup=False)
        yield Static("", id="job-figures", markup=False)
        yield ProgressBar(total=None, show_eta=False, id="job-bar")
        yield Button("Cancel", compact=True, id="job-cancel")

    def on_unmount(self) -> None:
        """Leaving the chat gives the work up."""
        self.running = False

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
        # A daemon: quitting must not wait for a long export step.
        Thread(target=self._work, args=(name, folder), name="prepare", daemon=True).start()
        return True

    def _work(self, name: str, folder: Path) -> None:
        try:
            self._prepare(name, folder, self._report)
            ending: Message = self.Done(folder)
        except Stopped:
            ending = self.GivenUp()
        except Exception as error:  # noqa: BLE001 - it is shown, and the chat goes on
            ending = self.Failed(error)
        self.post_message(ending)

    def _report(self, what: str, done: int, total: int) -> None:
        if not self.running:
            raise Stopped
        self._latest = (what, done, total)

    @on(Done)
    @on(GivenUp)
    @on(Failed)
    def hide(self) -> None:
        """The work has ended, one way or another."""
        self.running = self.display = False
        self._timer.pause()

    def _draw(self) -> None:
        what, done, total = self._latest
        short = self.size.width < WIDE
        shown = what.removeprefix("downloading ") if short else what
        self.query_one("#job-text", Static).update(on_one_line(shown))
        figures = self._pace.figures(what, done, total, short=short)
        self.query_one("#job-figures", Static).update(figures)
        bar = self.query_one("#job-bar", ProgressBar)
        bar.update(total=total or None, progress=done)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A way out with the mouse, or with Tab and Enter."""
        event.stop()
        self.give_up()

    def give_up(self) -> None:
        """Stop at the next report."""
        self.running = False
        self._latest = ("stopping", 0, 0)
