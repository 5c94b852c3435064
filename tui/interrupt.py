"""Ctrl-C as a request: the first one ends the answer, the second ends the program."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_cancels(cancel: Callable[[], None]) -> Iterator[None]:
    """Call `cancel` on the first Ctrl-C inside the block; a second one raises KeyboardInterrupt."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cancel()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
