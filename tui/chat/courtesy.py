"""Let the screen go first: where it and the engine want the same core, and before collecting garbage."""

import gc
import os
import sys
from threading import Lock, get_native_id

NICENESS = 5
NEVER = 1_000_000


def step_back() -> None:
    """Make this thread, and those it starts, a little less urgent (Linux only, where niceness is a thread's own)."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)


def set_modules_aside() -> None:
    """Spare the garbage collector what is there for good; only once, or what is let go of later would stay too."""
    if not gc.get_freeze_count():
        gc.freeze()


class ShortCollections:
    """While somebody is inside, full garbage collections are put off: one keeps the screen waiting for up to a tenth
    of a second. Any thread may come in; the last one to leave puts things back."""

    def __init__(self) -> None:
        self._lock, self._inside, self._usual = Lock(), 0, gc.get_threshold()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._usual = gc.get_threshold()
                gc.set_threshold(*self._usual[:2], NEVER)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                gc.set_threshold(*self._usual)


short_collections = ShortCollections()
