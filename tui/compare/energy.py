"""Energy that the processor used, where the system counts it (Linux's powercap interface to RAPL)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Zone:
    """One processor package's counter, in microjoules; it starts again at 0 behind `limit`."""

    counter: Path
    limit: int

    def read(self) -> int:
        """The counter now."""
        return int(self.counter.read_text())


class Meter:
    """Reads the counters of all processor packages. They count whatever runs, other programs too."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self.problem = ""
        self._zones: list[Zone] = []
        try:
            self._zones = [_zone(name.parent) for name in root.glob("*/name") if _is_package(name)]
        except PermissionError:
            self.problem = f"only root may read the energy counters in {root}"
        except (OSError, ValueError) as error:
            self.problem = f"the energy counters in {root} cannot be read: {error}"
        if not self._zones and not self.problem:
            self.problem = "this machine shows no energy counters"

    def read(self) -> Mapping[Zone, int]:
        """The state to measure from."""
        return {zone: zone.read() for zone in self._zones}

    def joules_since(self, before: Mapping[Zone, int]) -> float | None:
        """Joules used since `before`; None where nobody counts them."""
        if not self._zones:
            return None
        return sum((zone.read() - start) % (zone.limit + 1) for zone, start in before.items()) / 1e6


def _is_package(name: Path) -> bool:
    return name.read_text().strip().startswith("package")


def _zone(folder: Path) -> Zone:
    zone = Zone(folder / "energy_uj", int((folder / "max_energy_range_uj").read_text()))
    zone.read()
    return zone
