"""A plain Llama / Qwen2 forward pass in float64 numpy, written from the papers: what an export has to reproduce."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def reference_logits(
    config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], tokens: Sequence[int]
) -> Array:
    """Logits of every position of one text: [len(tokens), vocabulary]."""
    weights = {name: np.asarray(values, np.float64) for name, values in tensors.items()}
    x = weights["model.embed_tokens.weight"][list(tokens)]
    for index in range(config["num_hidden_layers"]):
        own = {
            name.removeprefix(f"model.layers.{index}."): values
            for name, values in weights.items()
            if name.startswith(f"model.layers.{index}.")
        }
        x = x + _attention(config, own, _norm(x, own["input_layernorm.weight"], config))
        x = x + _feed_forward(own, _norm(x, own["post_attention_layernorm.weight"], config))
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return _norm(x, weights["model.norm.weight"], config) @ head.T


def _attention(config: Mapping[str, Any], own: Mapping[str, Array], x: Array) -> Array:
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    cos, sin = _rotation(config, size, len(x))
    q = _rotate(_linear(own, "self_attn.q_proj", x).reshape(len(x), heads, size), cos, sin)
    k = _rotate(_linear(own, "self_attn.k_proj", x).reshape(len(x), groups, size), cos, sin)
    v = _linear(own, "self_attn.v_proj", x).reshape(len(x), groups, size)
    mixed = np.empty((len(x), heads, size))
    for head in range(heads):
        group = head * groups // heads
        scores = q[:, head] @ k[:, group].T / math.sqrt(size)
        scores[np.triu_indices(len(x), 1)] = -np.inf
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed[:, head] = chances / chances.sum(axis=1, keepdims=True) @ v[:, group]
    return _linear(own, "self_attn.o_proj", mixed.reshape(len(x), -1))


def _feed_forward(own: Mapping[str, Array], x: Array) -> Array:
    gate, up = _linear(own, "mlp.gate_proj", x), _linear(own, "mlp.up_proj", x)
    return _linear(own, "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)


def _linear(own: Mapping[str, Array], name: str, x: Array) -> Array:
    return x @ own[f"{name}.weight"].T + own.get(f"{name}.bias", np.zeros(1))


def _norm(x: Array, scale: Array, config: Mapping[str, Any]) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config["rms_norm_eps"]) * scale


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _rotation(config: Mapping[str, Any], size: int, length: int) -> tuple[Array, Array]:
    """Cosine and sine [length, 1, size/2]; each scaling is spelled out one frequency at a time."""
    scaling = config.get("rope_scaling") or {}
    frequencies = [
        _scaled(config["rope_theta"] ** (-2 * pair / size), pair, size, config, scaling)
        for pair in range(size // 2)
    ]
    angles = np.outer(np.arange(length), frequencies)[:, None]
    factor = 0.1 * math.log(scaling["factor"]) + 1 if scaling.get("rope_type") == "yarn" else 1.0
    return np.cos(angles) * factor, np.sin(angles) * factor


def _scaled(
    frequency: float, pair: int, size: int, config: Mapping[str, Any], scaling: Mapping[str, Any]
) -> float:
    if factors := config.get("rope_freq_factors"):
        return frequency / factors[pair]
    kind, factor = scaling.get("rope_type", "default"), scaling.get("factor", 1.0)
    if kind == "linear":
        return frequency / factor
    if kind == "llama3":
        turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
        if turns < scaling["low_freq_factor"]:
            return frequency / factor
        if turns > scaling["high_freq_factor"]:
            return frequency
        blend = (turns - scaling["low_freq_factor"]) / (
            scaling["high_freq_factor"] - scaling["low_freq_factor"]
        )
        return (1 - blend) * frequency / factor + blend * frequency
    if kind == "yarn":
        original = scaling["original_max_position_embeddings"]
        fast, slow = (
            size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config["rope_theta"]))
            for turns in (32, 1)
        )
        low, high = max(math.floor(fast), 0), min(math.ceil(slow), size - 1)
        blend = min(max((pair - low) / (high - low), 0.0), 1.0)
        return frequency * (1 - blend) + frequency / factor * blend
    return frequency
