"""Rotary position embedding: frequencies and scaling by config.json, as tables for the graph."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.graph.settings import Settings
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
    whole = Settings(config)
    own = _settings(whole, kind)
    theta = own.number("rope_theta") or whole.number("rope_theta") or 10000.0
    if theta <= 1:
        raise (own if "rope_theta" in own else whole).problem("rope_theta", "a number above 1 is needed")
    partial = own.number("partial_rotary_factor") or whole.number("partial_rotary_factor") or 1.0
    rotated = int(head_dim * partial)
    if not 2 <= rotated <= head_dim:
        raise whole.problem("partial_rotary_factor", f"it rotates {rotated} of {head_dim} dimensions")
    base = theta ** -(np.arange(0, rotated, 2, dtype=np.float64) / rotated)
    if factors := whole.numbers("rope_freq_factors"):
        own = Settings({"rope_type": "factors", "factors": factors})
    return _scaled(base, own, theta, context)


def _settings(config: Settings, kind: str) -> Settings:
    """The settings in config.json, those of a kind of layer where it has its own."""
    parameters = config.section("rope_parameters")
    if kind in parameters:
        return parameters.section(kind)
    if kind == "sliding_attention" and "rope_local_base_freq" in config:
        return Settings({"rope_theta": config.number("rope_local_base_freq")})
    key = "original_max_position_embeddings"
    original = {key: config.values[key]} if key in config else {}
    return Settings(original | dict(parameters.values) | dict(config.section("rope_scaling").values))


def _scaled(base: NDArray[np.float64], own: Settings, theta: float, context: int) -> Rope:
    kind, settings = own.word("rope_type") or own.word("type") or "default", own.values
    if kind not in _SCALINGS:
        raise SpecdecError(
            f"rope scaling {kind!r} is not supported",
            f"the exporter knows {', '.join(_SCALINGS)}",
            "choose another model",
        )
    try:
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            rope = _SCALINGS[kind](base, settings, theta, context)
        if not np.isfinite([rope.magnitude, *rope.inverse_frequencies]).all():
            raise ValueError("its frequencies are not numbers")
        return rope
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise SpecdecError(
            f"config.json: rope scaling {kind!r} is incomplete or has impossible values", f"{error!r}"
        ) from error


def _default(base: NDArray[np.float64], settings: Mapping[str, Any], theta: float, context: int) -> Rope:
    return Rope(_tuple(base))


def _factors(base: NDArray[np.float64], settings: Mapping[str, Any], theta: float, context: int) -> Rope:
    """A GGUF file may hold a factor for each frequency."""
    return Rope(_tuple(base / np.array(settings["factors"], np.float64)))


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
    "factors": _factors,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,
    "yarn": _yarn,
}
