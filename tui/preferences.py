"""The few choices that outlive a session: theme, last model, token view."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(slots=True)
class Preferences:
    """What the app remembers; unknown or damaged entries fall back to the defaults."""

    theme: str = ""
    model: str = ""

    @classmethod
    def load(cls, path: Path) -> "Preferences":
        """Read the file if there is a good one."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls()
        if not isinstance(stored, dict):
            return cls()
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in stored.items() if key in known and isinstance(value, str)})

    def save(self, path: Path) -> None:
        """Write in one step, so a crash leaves the old file; a read-only home is not an error."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".tmp")
            draft.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
            draft.replace(path)
        except OSError:
            return
