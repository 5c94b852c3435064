"""What one conversation is set to: system prompt, sampling, device, speculation."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

DEVICES = ("cpu", "cuda", "dml", "webgpu")


@dataclass(frozen=True, slots=True)
class Settings:
    """The defaults answer greedily, which is where speculation is exact to the bit."""

    system: str = ""
    device: str = "cpu"
    speculate: bool = True
    max_new_tokens: int = 1024
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Settings":
        """Read stored settings; what is unknown or of the wrong kind keeps its default."""
        known = {field.name for field in fields(cls)}
        good: dict[str, Any] = {}
        for name, value in stored.items():
            if name in known and _fits(getattr(DEFAULTS, name), value, name):
                good[name] = tuple(value) if name == "stop" else value
        return cls(**good)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def sampling(self) -> dict[str, Any]:
        """The fields that the engine's own parameters have."""
        own = ("system", "device", "speculate")
        return {name: value for name, value in asdict(self).items() if name not in own}


def _fits(default: Any, value: Any, name: str) -> bool:
    if name == "stop":
        return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
    if name == "seed":
        return value is None or (isinstance(value, int) and not isinstance(value, bool))
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float)
    return isinstance(value, type(default))


DEFAULTS = Settings()


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
