"""What one conversation is set to: system prompt, sampling, device, speculation."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import home, replacing
from specdec_onnx.runtime.sampling.parameters import Parameters

DEVICES = ("cpu", "cuda", "dml", "webgpu", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Parameters):
    """The engine's own parameters and what only the chat has. The defaults answer greedily."""

    system: str = ""
    device: str = "cpu"
    speculate: bool = True
    max_new_tokens: int = 1024

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Settings":
        """Read stored settings; what is unknown or wrong keeps its default."""
        settings = DEFAULTS
        for name in KEPT & set(stored):
            settings = _with(settings, name, stored[name])
        return settings

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name in KEPT}


def _with(settings: Settings, name: str, value: Any) -> Settings:
    default = getattr(DEFAULTS, name)
    if (name in OWN and type(value) is not type(default)) or (name == "device" and value not in DEVICES):
        return settings
    try:
        return replace(settings, **{name: value})
    except (SpecdecError, TypeError):
        return settings


DEFAULTS = Settings()
OWN = ("system", "device", "speculate")
KEPT = {field.name for field in fields(Settings)} - {"logit_bias"}
"""What a conversation is stored with."""


@dataclass(frozen=True, slots=True)
class Field:
    """One line of the settings screen: how it is read and between what bounds."""

    name: str
    label: str
    hint: str
    low: float
    high: float
    whole: bool = False
    optional: bool = False

    def show(self, settings: Settings) -> str:
        """The value as it stands in the input."""
        value = getattr(settings, self.name)
        return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    def read(self, text: str) -> int | float | None:
        """The typed value; ValueError says what would be right."""
        if self.optional and not text.strip():
            return None
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            raise ValueError(f"{self.label}: a {'whole ' if self.whole else ''}number, please") from None
        if not self.low <= value <= self.high:
            raise ValueError(f"{self.label}: from {self.low:g} to {self.high:g}")
        return value


FIELDS = (
    Field("max_new_tokens", "Longest answer", "tokens", 1, 1_000_000, whole=True),
    Field("temperature", "Temperature", "0 is greedy", 0, 5),
    Field("top_k", "Top k", "0 is off", 0, 1_000_000, whole=True),
    Field("top_p", "Top p", "1 is off", 0, 1),
    Field("min_p", "Min p", "0 is off", 0, 1),
    Field("repetition_penalty", "Repetition penalty", "1 is off", 0.1, 10),
    Field("presence_penalty", "Presence penalty", "0 is off", -10, 10),
    Field("frequency_penalty", "Frequency penalty", "0 is off", -10, 10),
    Field("seed", "Seed", "empty is random", 0, 2**63 - 1, whole=True, optional=True),
)


_SIGNS = {"\n": "\\n", "\t": "\\t", "\\": "\\\\", ",": "\\,"}
_MEANT = {sign[1]: character for character, sign in _SIGNS.items()}


def show_stops(stops: Sequence[str]) -> str:
    """Stop strings as one line of text, with commas between them."""
    return ", ".join(_shown(stop) for stop in stops)


def _shown(stop: str) -> str:
    last = len(stop) - 1
    return "".join(
        _SIGNS.get(c) or (c if c.isprintable() and (c != " " or 0 < at < last) else f"\\u{{{ord(c):x}}}")
        for at, c in enumerate(stop)
    )


def read_stops(text: str) -> tuple[str, ...]:
    """What `show_stops` makes, and what people type: `END, \\n\\n`."""
    words = [word.strip() for word in re.findall(r"(?:\\.|[^,\\]|\\$)+", text)]
    return tuple(_ESCAPE.sub(_meant, word) for word in words if word)


_ESCAPE = re.compile(r"\\u\{([0-9a-fA-F]{1,6})\}|\\(.)")


def _meant(escape: re.Match[str]) -> str:
    code, letter = escape.groups()
    if code and int(code, 16) <= sys.maxunicode:
        return chr(int(code, 16))
    return _MEANT.get(letter, escape[0]) if letter else escape[0]


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
            with replacing(path) as fresh:
                fresh.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        except OSError:
            return


def database_path() -> Path:
    """The SQLite file of all conversations."""
    return home() / "history.sqlite3"


def preferences_path() -> Path:
    """The small JSON file with theme and last model."""
    return home() / "preferences.json"
