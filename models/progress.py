"""Progress of long work: how it is reported, and the line on stderr that shows it."""

import shutil
import sys
from collections.abc import Callable
from typing import Self

from specdec_onnx.models.text import printable

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, how much is done, how much there is)."""


def silent(what: str, done: int, total: int) -> None:
    """A `Progress` that nobody watches."""


class ProgressLine:
    """A `Progress` on stderr: one changing line in a terminal, elsewhere a line for each tenth of a task.

    The first word of `what` names the task. Leaving the `with` block clears the terminal's line.
    """

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._width = 0
        self._printed = ("", -1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        percent = 100 * done // max(total, 1)
        tenth = (what.split(":")[0].split(" ")[0], percent // 10)
        if self._live or tenth != self._printed:
            self._printed = tenth
            self.show(f"{percent:3d} %  {what}")

    def show(self, text: str) -> None:
        """Replace the terminal's line; elsewhere print a line."""
        if not self._live:
            print(printable(text), file=sys.stderr, flush=True)
            return
        text = printable(text)[: shutil.get_terminal_size().columns - 1]  # a wrapped line can't be replaced
        print(f"\r{text:{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(text)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.close()
        print(printable(text), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the terminal's line."""
        if self._width:
            print(f"\r{'':{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
