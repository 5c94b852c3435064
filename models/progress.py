"""How long work tells how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, how much there is)"""


def silent(what: str, done: int, total: int) -> None:
    """For work that nobody watches."""
