"""Memory of this process."""

import sys
from pathlib import Path


def peak_memory() -> int | None:
    """The most bytes of memory that this process ever held, mapped weights included; None where nobody tells.

    Linux's own figure is read first: the one of getrusage starts with what the parent process held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        if "VmHWM" in fields:
            return 1024 * int(fields["VmHWM"].split()[0])
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
