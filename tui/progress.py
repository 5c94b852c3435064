"""Progress on stderr: bars in a terminal, a few plain lines anywhere else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINES = 10
"""How often a task reports where there is no terminal."""

Report = Callable[[str, int, int], None]
"""(what, done, total)."""


@contextmanager
def steps_on_stderr(total: int) -> Iterator[Callable[[str], None]]:
    """Count steps; the yielded function takes what was just done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, advance=1, description=done)


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
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield _Bars(bar)


class _Bars:
    def __init__(self, bar: "Progress") -> None:
        self.bar = bar
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.bar.add_task(what, total=total)
        self.bar.update(self.tasks[what], completed=done, total=total)


class _Lines:
    def __init__(self) -> None:
        self.said: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        tenth = LINES * done // max(total, 1)
        if tenth != self.said.get(what):
            self.said[what] = tenth
            print(f"{what}: {100 * done // max(total, 1)} %", file=sys.stderr, flush=True)
