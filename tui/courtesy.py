"""Let the screen go first where it and the engine want the same core or the same Python."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_native_id

NICENESS = 5
NEVER = 1_000_000


def step_back() -> None:
    """Make this thread, and those it starts, a little less urgent (Linux only, where niceness is a thread's own)."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)


def set_modules_aside() -> None:
    """Spare the garbage collector what is there for good; only once, or a pair let go of would stay too."""
    if not gc.get_freeze_count():
        gc.freeze()


@contextmanager
def short_collections() -> Iterator[None]:
    """Put off full garbage collections: one keeps the screen waiting for up to a tenth of a second."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
