"""How long-running work reports its progress: the callback, and a line on the terminal."""

import sys
from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, how much there is)"""


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def harmless(text: str) -> str:
    """`text` without control characters, which a terminal would obey: names come from files that others wrote."""
    return "".join(letter if letter.isprintable() or letter in "\n\t\xa0" else "\ufffd" for letter in text)


class ProgressLine:
    """Progress as a line on stderr: rewritten in place on a terminal, else printed at every tenth."""

    def __init__(self) -> None:
        self._width = 0
        self._last = ("", -1)
        self._live = sys.stderr.isatty()

    def __call__(self, what: str, done: int, total: int) -> None:
        text = f"{100 * done // max(total, 1):3d} %  {harmless(what)}"
        if self._live:
            print(f"\r{text:{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(text)
        elif self._last != (mark := (what.split(":")[0].split(" ")[0], 10 * done // max(total, 1))):
            print(text, file=sys.stderr, flush=True)
            self._last = mark

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.close()
        print(harmless(text), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal at the start of an empty line."""
        if self._live and self._width:
            print(f"\r{'':{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
