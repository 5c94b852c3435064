"""The values of a config.json, each read as the kind of value that it must be."""

from collections.abc import Mapping
from typing import Any

from specdec_onnx.models.errors import SpecdecError

_LARGEST = {
    "head_dim": 2**14,
    "hidden_size": 2**20,
    "intermediate_size": 2**22,
    "num_attention_heads": 2**14,
    "num_hidden_layers": 2**12,
    "num_key_value_heads": 2**14,
    "vocab_size": 2**24,
}
"""Far more than any model has: larger sizes are mistakes that would take all memory before they show."""

_LARGEST_NUMBER = 1e38


class Settings:
    """A config.json, or a section of one; a value of another kind than the one asked for raises SpecdecError.

    A value that is missing or null is the default.
    """

    def __init__(self, values: Mapping[str, Any], place: str = "config.json") -> None:
        self.values, self._place = values, place

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def size(self, key: str) -> int:
        """A whole number above 0, which must be there."""
        size = self.count(key)
        if size < 1:
            raise self.problem(key, "a positive whole number is needed")
        return size

    def count(self, key: str) -> int:
        """A whole number, by default 0."""
        value = self.number(key)
        if value != int(value):
            raise self.problem(key, "a whole number is needed")
        if key in _LARGEST and value > _LARGEST[key]:
            raise self.problem(key, f"the most that is supported is {_LARGEST[key]:,}")
        return int(value)

    def number(self, key: str, default: float = 0.0) -> float:
        """A number that is not negative."""
        value = self.values.get(key)
        if value is None:
            return default
        if not _is_number(value):
            raise self.problem(key, "a number is needed, and not a negative one")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false; 1 and 0 are the same."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool | int) or value not in (0, 1):
            raise self.problem(key, "true or false is needed")
        return bool(value)

    def word(self, key: str) -> str:
        """A text, by default an empty one."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.problem(key, "a text is needed")
        return value or ""

    def words(self, key: str) -> list[str]:
        """A list of texts, by default an empty one."""
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.problem(key, "a list of texts is needed")
        return value

    def numbers(self, key: str) -> list[float]:
        """A list of numbers that are not negative, by default an empty one."""
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(map(_is_number, value)):
            raise self.problem(key, "a list of numbers is needed, none of them negative")
        return [float(number) for number in value]

    def section(self, key: str) -> "Settings":
        """The settings in an object, by default an empty one."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.problem(key, "an object is needed")
        return Settings(value or {}, f"{self._place}: {key}")

    def problem(self, key: str, needed: str) -> SpecdecError:
        """The error for the value of `key`."""
        shown = repr(self.values.get(key))
        shown = shown if len(shown) < 100 else f"{shown[:100]}…"
        return SpecdecError(f"{self._place}: {key} is {shown}", needed, "check that the source is complete")


def _is_number(value: Any) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and 0 <= value <= _LARGEST_NUMBER
