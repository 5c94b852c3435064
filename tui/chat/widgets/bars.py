"""The single lines around the conversation: what is open, a download, the figures of an answer, the keys."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult, RenderResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Button, Footer, ProgressBar, Static
from textual.widgets._footer import FooterKey

from specdec_onnx.models.text import gigabytes, on_one_line, percent
from specdec_onnx.tui.chat.reply import figures, meter, sparkline
from specdec_onnx.tui.chat.services import Preparer

GAP = 3
SMALLEST_TEXT, SMALLEST_SPARKLINE = 4, 4
METER, METER_FITS = 8, 60
"""Cells of the context meter, and of a line that has room for it."""
FIGURES_FIT = 76
"""Cells of a line that has room for all figures of a download."""


class TopBar(Widget):
    """The title of the conversation on the left, the model and the context meter on the right."""

    heading = reactive("")
    model = reactive("")
    used = reactive(0)
    limit = reactive(0)

    def render(self) -> RenderResult:
        """Shorten the title first, unless the model takes more than half of the line."""
        width = self.size.width
        used = meter(self.used, self.limit, METER if width >= METER_FITS else 0).strip()
        context = f"{' ' * GAP}ctx {used}" if self.limit else ""
        right = Content.assemble(_shortened(self.model, width // 2), context).stylize("$text-muted")
        title = _shortened(self.heading, width - right.cell_length - GAP)
        gap = max(1, width - title.cell_length - right.cell_length)
        return Content.assemble(title.stylize("bold"), " " * gap, right)


def _shortened(text: str, room: int) -> Content:
    """Cut the text to `room` cells, with dots at the end; if only a few cells are left, drop it."""
    content = Content(on_one_line(text))
    return content.truncate(room, ellipsis=True) if room >= SMALLEST_TEXT else Content()


class StatisticsBar(Widget):
    """Figures of the current or last answer, a remark such as why speculation is off, and a sparkline."""

    statistics: reactive[Mapping[str, Any]] = reactive(dict)
    remark = reactive("")

    def render(self) -> RenderResult:
        """Give the sparkline the room that figures and remark leave."""
        text = figures(self.statistics)
        remark = (" · " if text else "") + self.remark if self.remark else ""
        rounds = self.statistics.get("tokens_by_round", ())
        room = self.size.width - len(text) - len(remark) - 2
        bars = sparkline(rounds, room) if room >= SMALLEST_SPARKLINE else ""
        return Content.assemble(
            text, (remark, "$text-warning"), "  " if bars else "", (bars, "$text-success")
        )


class KeyBar(Footer):
    """The keys that fit without being cut; those of a selected turn come first."""

    def compose(self) -> ComposeResult:
        """Leave out keys for which there is no room beside the palette's."""
        keys = [key for key in super().compose() if isinstance(key, FooterKey)]
        palette = [key for key in keys if key.has_class("-command-palette")]
        room = self.app.size.width - sum(map(_cells, palette))
        for key in keys:
            if key in palette:
                yield key
            elif _cells(key) <= room:
                room -= _cells(key)
                yield key

    def on_resize(self, event: events.Resize) -> None:
        """Choose the keys again for the new width."""
        self.call_after_refresh(self.recompose)


def _cells(key: FooterKey) -> int:
    """The width of a key with the blank before its word and the one after it."""
    return cell_len(key.key_display) + cell_len(key.description) + 2


class JobBar(Horizontal):
    """Prepares one pair in a thread and shows how far it is; hidden otherwise."""

    FRAMES = 10

    @dataclass
    class Done(Message):
        """The pair is in `folder`."""

        folder: Path

    @dataclass
    class Failed(Message):
        """Preparing failed; what was downloaded is kept and not downloaded again."""

        error: BaseException

    class Cancelled(Message):
        """Preparing was cancelled."""

    def __init__(self, prepare: Preparer, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._prepare = prepare
        self._latest = ("starting", 0, 0)
        self._pace = Pace()
        self.running = False

    def compose(self) -> ComposeResult:
        """What is being done, how far it is, and a button to cancel it."""
        yield Static("", id="job-text", markup=False)
        yield Static("", id="job-figures", markup=False)
        yield ProgressBar(total=None, show_eta=False, id="job-bar")
        yield Button("Cancel", compact=True, id="job-cancel")

    def on_mount(self) -> None:
        """Hide until there is work."""
        self.display = False
        self._timer = self.set_interval(1 / self.FRAMES, self._draw, pause=True)

    def on_unmount(self) -> None:
        """Cancel the work when the chat is left."""
        self.running = False

    def start(self, name: str, folder: Path) -> bool:
        """Prepare the catalog's pair `name` in `folder`; return False while another one is being prepared."""
        if self.running:
            return False
        self.running, self.display, self._latest = True, True, (f"preparing {name}", 0, 0)
        self._timer.resume()
        # A daemon: quitting must not wait for a long export step.
        Thread(target=self._work, args=(name, folder), name="prepare", daemon=True).start()
        return True

    def cancel(self) -> None:
        """Stop the work at its next report."""
        self.running = False
        self._latest = ("stopping", 0, 0)

    def _work(self, name: str, folder: Path) -> None:
        try:
            self._prepare(name, folder, self._report)
            ending: Message = self.Done(folder)
        except _Stop:
            ending = self.Cancelled()
        except Exception as error:  # noqa: BLE001 - it is shown, and the chat continues
            ending = self.Failed(error)
        self.post_message(ending)

    def _report(self, what: str, done: int, total: int) -> None:
        if not self.running:
            raise _Stop
        self._latest = (what, done, total)

    @on(Done)
    @on(Cancelled)
    @on(Failed)
    def hide(self) -> None:
        """Hide the line again, however the work ended."""
        self.running = self.display = False
        self._timer.pause()

    def _draw(self) -> None:
        what, done, total = self._latest
        short = self.size.width < FIGURES_FIT
        text = what.removeprefix("downloading ") if short else what
        self.query_one("#job-text", Static).update(on_one_line(text))
        self.query_one("#job-figures", Static).update(self._pace.figures(what, done, total, short=short))
        self.query_one("#job-bar", ProgressBar).update(total=total or None, progress=done)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Cancel by mouse, or with Tab and Enter."""
        event.stop()
        self.cancel()


class _Stop(Exception):
    """Raised in the working thread to cancel it."""


class Pace:
    """How far one task after the other is, and how fast it goes."""

    SMALLEST_SIZE = 1 << 20
    """A total of at least this many is a number of bytes: no task has so many steps."""
    SPAN, SHORTEST_SPAN = 5.0, 0.5
    """Seconds over which the speed is measured, and below which it is unknown."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._what = ""
        self._history = deque[tuple[float, int]]()

    def figures(self, what: str, done: int, total: int, *, short: bool = False) -> str:
        """Return `412 MB of 1.1 GB · 12 MB/s · 0:58 left`, in short `37 % · 12 MB/s`, for steps `5 of 24`.

        While the total is unknown (0), return nothing.
        """
        if not total:
            return ""
        if total < self.SMALLEST_SIZE:
            return f"{done} of {total}"
        speed = self._speed(what, done)
        parts = [percent(done / total) if short else f"{gigabytes(done)} of {gigabytes(total)}"]
        if speed > 0 and done < total:
            minutes, seconds = divmod(int((total - done) / speed), 60)
            shown = gigabytes(int(speed)) if speed >= 1e6 else f"{speed / 1e3:.0f} kB"
            parts += [f"{shown}/s", *([] if short else [f"{minutes}:{seconds:02} left"])]
        return " · ".join(parts)

    def _speed(self, what: str, done: int) -> float:
        now, history = self._clock(), self._history
        if what != self._what or (history and done < history[-1][1]):
            self._what = what
            history.clear()
        history.append((now, done))
        while now - history[0][0] > self.SPAN and len(history) > 2:
            history.popleft()
        since, before = history[0]
        return (done - before) / (now - since) if now - since >= self.SHORTEST_SPAN else 0.0
