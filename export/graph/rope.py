"""Rotary position embedding: frequencies and scaling by config.json, as tables for the graph."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError


@dataclass(frozen=True)
class Rope:
    """Angle per position for each pair of a head's first dimensions, and the factor on cosine and sine.

    In graphs of more than `limit` positions, `beyond` replaces it (LongRoPE).
    """

    inverse_frequencies: tuple[float, ...]
    magnitude: float = 1.0
    beyond: "Rope | None" = None
    limit: int = 0

    def within(self, positions: int) -> "Rope":
        """The one for texts of so many positions; it cannot change later, because a cache holds rotated keys."""
        return self.beyond if self.beyond and positions > self.limit else replace(self, beyond=None, limit=0)

    def tables(self, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosine and sine for positions 0 to `positions`-1: two float32 [positions, rotated dimensions/2]."""
        angles = np.outer(np.arange(positions), np.array(self.inverse_frequencies, np.float64))
        return (
            (np.cos(angles) * self.magnitude).astype(np.float32),
            (np.sin(angles) * self.magnitude).astype(np.float32),
        )


def read_rope(config: Mapping[str, Any], head_dim: int, context: int, kind: str = "full_attention") -> Rope:
    """The rotary embedding of a config.json (`rope_scaling` or the newer `rope_parameters`) for a kind of layer."""
    settings = _settings(config, kind)
    theta = float(settings.get("rope_theta") or config.get("rope_theta") or 10000.0)
    partial = settings.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    rotated = int(head_dim * float(partial))
    base = theta ** -(np.arange(0, rotated, 2, dtype=np.float64) / rotated)
    if factors := config.get("rope_freq_factors"):
        return Rope(_tuple(base / np.array(factors, np.float64)))
    return _scaled(base, settings, theta, context)


def _settings(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The settings in config.json, those of a kind of layer where it has its own."""
    parameters = dict(config.get("rope_parameters") or {})
    if kind in parameters:
        return dict(parameters[kind])
    if kind == "sliding_attention" and "rope_local_base_freq" in config:
        return {"rope_theta": config["rope_local_base_freq"]}
    original = {
        key: config[key] for key in ("original_max_position_embeddings",) if config.get(key) is not None
    }
    return original | parameters | dict(config.get("rope_scaling") or {})


def _scaled(base: NDArray[np.float64], settings: Mapping[str, Any], theta: float, context: int) -> Rope:
    kind = str(settings.get("rope_type") or settings.get("type") or "default")
    if kind not in _SCALINGS:
        raise SpecdecError(
            f"rope scaling {kind!r} is not supported",
            f"the exporter knows {', '.join(_SCALINGS)}",
            "choose another model",
        )
    try:
        return _SCALINGS[kind](base, settings, theta, context)
    except (KeyError, TypeError, ValueError) as error:
        raise SpecdecError(f"config.json: rope scaling {kind!r} is incomplete", f"{error!r}") from error


def _default(base: NDArray[np.float64], settings: Mapping[str, Any], theta: float, context: int) -> Rope:
    return Rope(_tuple(base))


def _linear(base: NDArray[np.float64], settings: Mapping[str, Any], theta: float, context: int) -> Rope:
    return Rope(_tuple(base / float(settings["factor"])))


def _llama3(base: NDArray[np.float64], settings: Mapping[str, Any], theta: float, context: int) -> Rope:
    """Long wavelengths are stretched, short ones kept, with a ramp between (Llama 3.1 reference code)."""
    factor, low, high = (float(settings[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(settings["original_max_position_embeddings"]) * base / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return Rope(_tuple(base * (keep + (1 - keep) / factor)))


def _yarn(base: NDArray[np.float64], settings: Mapping[str, Any], theta: float, context: int) -> Rope:
    """YaRN (arXiv 2309.00071 §3): interpolate slow dimensions, keep fast ones, sharpen the attention."""
    factor = float(settings["factor"])
    original = float(settings.get("original_max_position_embeddings") or context)
    size = 2 * len(base)

    def dimension(rotations: float) -> float:
        return size * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(dimension(float(settings.get("beta_fast") or 32))), 0)
    last = min(math.ceil(dimension(float(settings.get("beta_slow") or 1))), size - 1)
    ramp = np.clip((np.arange(len(base)) - first) / max(last - first, 1e-3), 0.0, 1.0)
    magnitude = settings.get("attention_factor") or (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return Rope(_tuple(base * (1 - ramp) + base / factor * ramp), float(magnitude))


def _longrope(base: NDArray[np.float64], settings: Mapping[str, Any], theta: float, context: int) -> Rope:
    """LongRoPE (arXiv 2402.13753): a searched factor for each frequency, different ones beyond the trained length."""
    original = int(settings["original_max_position_embeddings"])
    factor = float(settings.get("factor") or context / original)
    stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    magnitude = float(settings.get("attention_factor") or stretched)
    short, long = (
        Rope(_tuple(base / np.array(settings[key], np.float64)), magnitude)
        for key in ("short_factor", "long_factor")
    )
    return Rope(short.inverse_frequencies, magnitude, long, original)


def _tuple(frequencies: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) for value in frequencies)


# Dynamic NTK leaves the frequencies alone up to max_position_embeddings, and no graph reaches beyond.
_SCALINGS = {
    "default": _default,
    "dynamic": _default,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,
    "yarn": _yarn,
}
