"""Progress on stderr: bars in a terminal, a few plain lines anywhere else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from typing import TYPE_CHECKING, Self

from specdec_onnx.tui.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


LINES = 10
"""How often a task reports where there is no terminal."""

Report = Callable[[str, int, int], None]
"""(what, done, total)."""


PATIENCE, MORE_PATIENCE = 0.5, 3.0
"""Seconds before a terminal, and before anything else, is told that a prompt is being read."""


class Reading:
    """Tells that a prompt is being read, if that takes long; a context manager, called with (done, total) tokens.

    In a terminal a line that goes away, elsewhere one line that stays.
    """

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._timer = Timer(PATIENCE if self._terminal else MORE_PATIENCE, self._begin)
        self._timer.daemon = True
        self._lock, self._closed, self._text, self._width = Lock(), False, "reading the prompt", 0

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, done: int, total: int) -> None:
        with self._lock:
            self._text = f"reading the prompt: {100 * done // max(total, 1)} % of {total} tokens"
            if self._width:
                self._draw()

    def close(self) -> None:
        """Take the line away, for good."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._width:
                print(f"\r{'':{self._width}}\r", end="", file=sys.stderr, flush=True)
                self._width = 0

    def _begin(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._terminal:
                self._draw()
            else:
                print(self._text, file=sys.stderr, flush=True)

    def _draw(self) -> None:
        print(f"\r{self._text:{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(self._text)


@contextmanager
def steps_on_stderr(total: int) -> Iterator[Callable[[str], None]]:
    """Count steps; the yielded function takes what was just done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, advance=1, description=printable(done))


@contextmanager
def work_on_stderr(*, sizes: bool = False) -> Iterator[Report]:
    """Follow any number of tasks; the yielded function takes (what, done, total), in bytes if `sizes`."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TaskProgressColumn as PercentColumn

    amount = DownloadColumn() if sizes else PercentColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield _Bars(bar)


class _Bars:
    def __init__(self, bar: "Progress") -> None:
        self.bar = bar
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.bar.add_task(printable(what), total=total)
        self.bar.update(self.tasks[what], completed=done, total=total)


class _Lines:
    def __init__(self) -> None:
        self.said: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        tenth = LINES * done // max(total, 1)
        if tenth != self.said.get(what):
            self.said[what] = tenth
            print(f"{printable(what)}: {100 * done // max(total, 1)} %", file=sys.stderr, flush=True)
