"""Let the screen go first: when it and the engine want the same core, and before garbage is collected."""

import gc
import os
import sys
from threading import get_native_id

NICENESS = 5
NEVER = 1_000_000


def step_back() -> None:
    """Lower the priority of this thread and of those it starts (Linux only, where each thread has its own)."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)


def set_modules_aside() -> None:
    """Spare the garbage collector what stays for good; only once, or what is freed later would stay too."""
    if not gc.get_freeze_count():
        gc.freeze()


class ShortCollections:
    """Full garbage collections are put off while anyone is inside: one stops the screen for up to a tenth of a second.

    Answers overlap (one is drawn while a cancelled one ends), so the last to leave restores the threshold.
    """

    def __init__(self) -> None:
        self._inside, self._usual = 0, gc.get_threshold()

    def __enter__(self) -> None:
        if not self._inside:
            self._usual = gc.get_threshold()
            gc.set_threshold(*self._usual[:2], NEVER)
        self._inside += 1

    def __exit__(self, *error: object) -> None:
        self._inside -= 1
        if not self._inside:
            gc.set_threshold(*self._usual)


short_collections = ShortCollections()
