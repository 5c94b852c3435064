"""What the reader sets: for one conversation (system prompt, sampling, device, speculation) and for the app.

The settings dialog shows each number of `Parameters`; `FIELDS` may have more rows, for numbers of `Settings`.
"""

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import home, replacing
from specdec_onnx.runtime.sampling.parameters import NUMBERS, Parameters

OVERFLOWS = {"stop": "stop, and say so", "drop": "leave out the oldest turns"}
"""What happens to a conversation that is too long for the context; the history keeps all of it."""

DEVICES = ("cpu", "cuda", "dml", "webgpu", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Parameters):
    """The settings of one conversation: the engine's parameters and those that only the chat has."""

    system: str = ""
    device: str = "cpu"
    speculate: bool = True
    overflow: str = "stop"
    max_new_tokens: int = 1024

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Settings":
        """Read stored settings; an unknown name is ignored, an invalid value becomes the default."""
        settings = DEFAULTS
        for name in STORED & set(stored):
            settings = _with_valid(settings, name, stored[name])
        return settings

    def as_dict(self) -> dict[str, Any]:
        """Return what is stored with a conversation, ready for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name in STORED}


DEFAULTS = Settings()
_NAMES = {field.name for field in fields(Settings)}
_ONLY_CHAT = _NAMES - {field.name for field in fields(Parameters)}
_CHOICES: dict[str, Collection[str]] = {"device": DEVICES, "overflow": OVERFLOWS}
STORED = _NAMES - {"logit_bias"}


def _with_valid(settings: Settings, name: str, value: Any) -> Settings:
    wrong_type = name in _ONLY_CHAT and type(value) is not type(getattr(DEFAULTS, name))
    if wrong_type or value not in _CHOICES.get(name, [value]):
        return settings
    try:
        return replace(settings, **{name: value})
    except (SpecdecError, TypeError):
        return settings


@dataclass(frozen=True, slots=True)
class Field:
    """A number in the settings dialog, with its bounds; an `optional` one may be empty (None)."""

    name: str
    label: str
    hint: str
    low: float
    high: float
    whole: bool = False
    optional: bool = False

    def show(self, settings: Settings) -> str:
        """Return the value as text for the input."""
        value = getattr(settings, self.name)
        return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    def read(self, text: str) -> int | float | None:
        """Return the typed value. Raises ValueError with what is allowed."""
        if self.optional and not text.strip():
            return None
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            raise ValueError(f"{self.label}: enter a {'whole ' if self.whole else ''}number") from None
        if not self.low <= value <= self.high:
            raise ValueError(f"{self.label}: from {self.low:g} to {self.high:g}")
        return value


FIELDS = [
    Field(name, *number.chat, whole=number.kind is int, optional=number.optional)
    for name, number in NUMBERS.items()
]

_ESCAPES = {"\n": "\\n", "\t": "\\t", "\\": "\\\\", ",": "\\,"}
_ESCAPED = {escape[1]: character for character, escape in _ESCAPES.items()}
_ESCAPE = re.compile(r"\\u\{([0-9a-fA-F]{1,6})\}|\\(.)")


def show_stops(stops: Sequence[str]) -> str:
    """Return stop strings as one line of text, separated by commas, with escapes such as `\\n` and `\\u{1b}`."""
    return ", ".join(map(_escape, stops))


def _escape(stop: str) -> str:
    last = len(stop) - 1
    return "".join(
        _ESCAPES.get(c) or (c if c.isprintable() and (c != " " or 0 < at < last) else f"\\u{{{ord(c):x}}}")
        for at, c in enumerate(stop)
    )


def read_stops(text: str) -> tuple[str, ...]:
    """Read what `show_stops` returns, or what people type: `END, \\n\\n`."""
    words = [word.strip() for word in re.findall(r"(?:\\.|[^,\\]|\\$)+", text)]
    return tuple(_ESCAPE.sub(_unescape, word) for word in words if word)


def _unescape(escape: re.Match[str]) -> str:
    code, letter = escape.groups()
    if code and int(code, 16) <= sys.maxunicode:
        return chr(int(code, 16))
    return _ESCAPED.get(letter, escape[0]) if letter else escape[0]


@dataclass(slots=True)
class Preferences:
    """What the app remembers between two starts."""

    theme: str = ""
    model: str = ""

    @classmethod
    def load(cls, path: Path) -> "Preferences":
        """Read the file; what is missing, unknown or damaged becomes the default."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls()
        if not isinstance(stored, dict):
            return cls()
        names = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in stored.items() if key in names and isinstance(value, str)})

    def save(self, path: Path) -> None:
        """Replace the file in one step, so that a crash leaves the old one; ignore a read-only home."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as fresh:
                fresh.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        except OSError:
            return


def database_path() -> Path:
    """Return the SQLite file of all conversations."""
    return home() / "history.sqlite3"


def preferences_path() -> Path:
    """Return the JSON file of the preferences."""
    return home() / "preferences.json"
