"""Let the screen go first where it and the engine want the same core."""

import os
import sys
from threading import get_native_id

NICENESS = 5


def step_back() -> None:
    """Make this thread, and those it starts, a little less urgent (Linux only, where niceness is a thread's own)."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)
