"""Rotary position embedding: frequencies and scaling as config.json states them, tabulated for the graph."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError


@dataclass(frozen=True)
class Rope:
    """Angle per position for each pair of a head's dimensions, and the factor on cosine and sine."""

    inverse_frequencies: tuple[float, ...]
    magnitude: float = 1.0

    def tables(self, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosine and sine for positions 0 to `positions`-1: two float32 [positions, head_dim/2]."""
        angles = np.outer(np.arange(positions), np.array(self.inverse_frequencies, np.float64))
        return (
            (np.cos(angles) * self.magnitude).astype(np.float32),
            (np.sin(angles) * self.magnitude).astype(np.float32),
        )


def read_rope(config: Mapping[str, Any], head_dim: int, context: int) -> Rope:
    """The rotary embedding of a config.json (`rope_scaling` or the newer `rope_parameters`)."""
    settings = dict(config.get("rope_parameters") or {}) | dict(config.get("rope_scaling") or {})
    theta = float(settings.get("rope_theta") or config.get("rope_theta") or 10000.0)
    base = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if factors := config.get("rope_freq_factors"):
        return Rope(_tuple(base / np.array(factors, np.float64)))
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
    """Long wavelengths are stretched, short ones kept, a ramp between (Llama 3.1 reference code)."""
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


def _tuple(frequencies: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) for value in frequencies)


# Dynamic NTK leaves the frequencies alone up to max_position_embeddings, and no graph reaches beyond.
_SCALINGS = {"default": _default, "dynamic": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
