"""One architecture's part of a GGUF file's metadata."""

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from specdec_onnx.models.errors import SpecdecError


def shortest(value: "float | np.float32") -> float:
    """The shortest decimal that float32 holds as `value`: what was written before it was stored."""
    return float(str(np.float32(value)))


class Settings:
    """The metadata entries of one architecture, by the part of their key after it."""

    def __init__(self, file: str, metadata: Mapping[str, Any]) -> None:
        self.file, self.metadata = file, metadata
        self.prefix = f"{metadata['general.architecture']}."

    def number(self, key: str, default: float | None = None) -> Any:
        """One positive number, floats as the shortest decimal float32 holds; else SpecdecError."""
        value = self.metadata.get(self.prefix + key, default)
        if isinstance(value, list) and value and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            raise self.problem(key, value)
        return shortest(value) if isinstance(value, float) else value

    def count(self, key: str, default: int | None = None) -> int:
        """One positive whole number; SpecdecError otherwise."""
        value = self.number(key, default)
        if not isinstance(value, int):
            raise self.problem(key, value)
        return value

    def get(self, key: str) -> Any:
        """Any entry, or None."""
        return self.metadata.get(self.prefix + key)

    def group(self, start: str) -> set[str]:
        """What follows `start` in the keys that begin with it."""
        whole = self.prefix + start
        return {key.removeprefix(whole) for key in self.metadata if key.startswith(whole)}

    def problem(self, key: str, value: Any) -> SpecdecError:
        """The error for an entry that is missing or has a value that cannot be used."""
        found = "is missing" if value is None else f"is {str(value)[:60]}"
        why = f"its metadata entry {self.prefix}{key} {found}"
        return SpecdecError(f"{self.file} does not describe its model", why, "convert the model again")
