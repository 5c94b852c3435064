"""How much memory a model takes, said before it is loaded."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.prefill import CHUNK

_ACTIVATIONS = 16
"""Floats that a token of a prefill chunk keeps for each unit of hidden and intermediate width; measured."""

_ARENA = 48 << 20
_LOGIT_ROWS = 34


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes: weights in memory, key-value cache when full, and what passes need meanwhile."""

    weights: int
    cache: int
    working: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.working


def predict(model: ModelFolder, capacity: int) -> Footprint:
    """What `model` takes with room for `capacity` tokens.

    An embedding table that specdec-export wrote stays in the file: only the rows in use are read.
    """
    hidden, wide = (model.number(key) or 0 for key in ("hidden_size", "intermediate_size"))
    table = _table_item_bytes(str(model.facts.get("format") or "")) * model.vocab_size * hidden
    working = _ARENA + 4 * (CHUNK * _ACTIVATIONS * (hidden + wide) + _LOGIT_ROWS * model.vocab_size)
    return Footprint(max(0, model.weight_bytes - table), _row_bytes(model) * capacity, working)


def _table_item_bytes(format: str) -> int:
    """Bytes of a number in the embedding table that specdec-export puts beside a format; 0 for others' graphs."""
    if format in ("", "fp32"):
        return 4 if format else 0
    return 2 if format.startswith("int8") else 1


def available_memory() -> int | None:
    """Bytes that can be had without swapping, within a container's limit; None where the system does not tell."""
    try:
        free = _windows() if sys.platform == "win32" else _unix()
    except (OSError, ValueError, AttributeError):
        return None
    limit = _container_room()
    return free if limit is None else min(free, limit)


def check_memory(needs: Mapping[str, Footprint], context: int) -> None:
    """Raise SpecdecError, with the numbers, when models with these footprints cannot fit; keys are their roles."""
    available, total = available_memory(), sum(need.total for need in needs.values())
    if available is None or total <= available:
        return
    parts = "; ".join(
        f"{role}: weights {_text(need.weights)}, cache of {context} tokens {_text(need.cache)}, "
        f"working memory {_text(need.working)}"
        for role, need in needs.items()
    )
    raise SpecdecError(
        f"not enough memory: {_text(total)} needed, {_text(available)} available",
        parts,
        "load with a smaller context, close other programs, or choose a smaller model",
    )


def _row_bytes(model: ModelFolder) -> int:
    heads = model.number("num_attention_heads") or 1
    width = model.number("head_dim") or (model.number("hidden_size") or 0) // heads
    groups = model.number("num_key_value_heads") or heads
    item = 2 if model.facts.get("cache") == "fp16" else 4
    return 2 * item * (model.number("num_hidden_layers") or 0) * groups * width


def _unix() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container_room() -> int | None:
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
        return int(limit) - int(used)
    except (OSError, ValueError):
        return None


def _windows() -> int:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = (
            ("size", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            ("total", ctypes.c_ulonglong),
            ("available", ctypes.c_ulonglong),
            ("others", ctypes.c_ulonglong * 5),
        )

    status = Status(size=ctypes.sizeof(Status))
    if not getattr(ctypes, "windll").kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):  # noqa: B009
        raise OSError("GlobalMemoryStatusEx failed")
    return int(status.available)


def _text(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
