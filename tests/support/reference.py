"""A plain forward pass in float64 numpy, written from the papers: what an export of any family has to reproduce."""

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
    gemma = config["model_type"].startswith("gemma")
    x = weights["model.embed_tokens.weight"][list(tokens)]
    x = x * (math.sqrt(config["hidden_size"]) if gemma else config.get("embedding_multiplier", 1.0))
    for index in range(config["num_hidden_layers"]):
        own = {
            name.removeprefix(f"model.layers.{index}."): values
            for name, values in weights.items()
            if name.startswith(f"model.layers.{index}.")
        }
        x = _layer(config, own, index, x)
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    logits = _norm(x, weights["model.norm.weight"], config) @ head.T / config.get("logits_scaling", 1.0)
    return _capped(logits, config.get("final_logit_softcapping"))


def _layer(config: Mapping[str, Any], own: Mapping[str, Array], index: int, x: Array) -> Array:
    """x and what the layer adds to it: norms before each half, after it (OLMo 2), or both (Gemma)."""
    factor, kind = config.get("residual_multiplier", 1.0), config["model_type"]

    def normed(values: Array, name: str) -> Array:
        return _norm(values, own[f"{name}_layernorm.weight"], config)

    if kind == "olmo2":
        x = x + normed(_attention(config, own, index, x), "post_attention")
        return x + normed(_feed_forward(config, own, x), "post_feedforward")
    if kind.startswith("gemma"):
        x = x + normed(_attention(config, own, index, normed(x, "input")), "post_attention")
        return x + normed(_feed_forward(config, own, normed(x, "pre_feedforward")), "post_feedforward")
    x = x + factor * _attention(config, own, index, normed(x, "input"))
    return x + factor * _feed_forward(config, own, normed(x, "post_attention"))


def _attention(config: Mapping[str, Any], own: Mapping[str, Array], index: int, x: Array) -> Array:
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    q, k, v = _projections(config, own, x, heads * size, groups * size)
    q, k, v = q.reshape(-1, heads, size), k.reshape(-1, groups, size), v.reshape(-1, groups, size)
    if config["model_type"] in ("qwen3", "gemma3_text"):
        q, k = (
            _norm(value, own[f"self_attn.{name}_norm.weight"], config) for name, value in (("q", q), ("k", k))
        )
    window = _window(config, index)
    if not _is_without_rope(config, index):
        cos, sin = _rotation(config, size, len(x), local=window is not None)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    scale = config.get("attention_multiplier") or 1 / math.sqrt(config.get("query_pre_attn_scalar") or size)
    distance = np.arange(len(x))[:, None] - np.arange(len(x))
    hidden = (distance < 0) | (distance >= (window or len(x)))
    mixed = np.empty((len(x), heads, size))
    for head in range(heads):
        group = head * groups // heads
        scores = _capped(scale * q[:, head] @ k[:, group].T, config.get("attn_logit_softcapping"))
        scores[hidden] = -np.inf
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed[:, head] = chances / chances.sum(axis=1, keepdims=True) @ v[:, group]
    return _linear(own, "self_attn.o_proj", mixed.reshape(len(x), -1))


def _projections(
    config: Mapping[str, Any], own: Mapping[str, Array], x: Array, queries: int, keys: int
) -> Sequence[Array]:
    if config["model_type"] == "phi3":
        return np.split(_linear(own, "self_attn.qkv_proj", x), [queries, queries + keys], axis=-1)
    q, k, v = (_linear(own, f"self_attn.{name}_proj", x) for name in "qkv")
    if config["model_type"] == "olmo2":
        q = _norm(q, own["self_attn.q_norm.weight"], config)
        k = _norm(k, own["self_attn.k_norm.weight"], config)
    return q, k, v


def _window(config: Mapping[str, Any], index: int) -> int | None:
    """How many tokens the layer sees; None: all."""
    kind, window = config["model_type"], config.get("sliding_window")
    if kind == "gemma2":
        return window if index % 2 == 0 else None
    if kind == "gemma3_text":
        return window if (index + 1) % config["sliding_window_pattern"] else None
    if kind in ("mistral", "phi3"):
        return window
    asked = config.get("use_sliding_window") and index >= config["max_window_layers"]
    return window if asked else None


def _is_without_rope(config: Mapping[str, Any], index: int) -> bool:
    return config["model_type"] == "smollm3" and (index + 1) % config["no_rope_layer_interval"] == 0


def _feed_forward(config: Mapping[str, Any], own: Mapping[str, Array], x: Array) -> Array:
    if config["model_type"] == "phi3":
        gate, up = np.split(_linear(own, "mlp.gate_up_proj", x), 2, axis=-1)
    else:
        gate, up = _linear(own, "mlp.gate_proj", x), _linear(own, "mlp.up_proj", x)
    if config["model_type"].startswith("gemma"):
        bent = np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))
        return _linear(own, "mlp.down_proj", gate / 2 * (1 + bent) * up)
    return _linear(own, "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)


def _linear(own: Mapping[str, Array], name: str, x: Array) -> Array:
    return x @ own[f"{name}.weight"].T + own.get(f"{name}.bias", np.zeros(1))


def _capped(x: Array, cap: float | None) -> Array:
    return cap * np.tanh(x / cap) if cap else x


def _norm(x: Array, scale: Array, config: Mapping[str, Any]) -> Array:
    scale = scale + 1 if config["model_type"].startswith("gemma") else scale
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config["rms_norm_eps"]) * scale


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def _rotation(config: Mapping[str, Any], size: int, length: int, local: bool = False) -> tuple[Array, Array]:
    """Cosine and sine [length, 1, rotated/2]; each scaling is spelled out one frequency at a time."""
    scaling, theta = config.get("rope_scaling") or {}, config["rope_theta"]
    if local and "rope_local_base_freq" in config:
        scaling, theta = {}, config["rope_local_base_freq"]
    size = int(size * config.get("partial_rotary_factor", 1.0))
    frequencies = [
        _scaled(theta ** (-2 * pair / size), pair, size, config, scaling) for pair in range(size // 2)
    ]
    angles = np.outer(np.arange(length), frequencies)[:, None]
    factor = 0.1 * math.log(scaling["factor"]) + 1 if scaling.get("rope_type") == "yarn" else 1.0
    if scaling.get("type") == "longrope":
        original = config["original_max_position_embeddings"]
        factor = math.sqrt(1 + math.log(config["max_position_embeddings"] / original) / math.log(original))
    return np.cos(angles) * factor, np.sin(angles) * factor


def _scaled(
    frequency: float, pair: int, size: int, config: Mapping[str, Any], scaling: Mapping[str, Any]
) -> float:
    if factors := config.get("rope_freq_factors"):
        return frequency / factors[pair]
    kind, factor = scaling.get("rope_type", "default"), scaling.get("factor", 1.0)
    if kind == "linear":
        return frequency / factor
    if (
        scaling.get("type") == "longrope"
    ):  # the tests' models are exported for more than 16 positions, not than 64
        beyond = config["original_max_position_embeddings"] < 64
        return frequency / scaling["long_factor" if beyond else "short_factor"][pair]
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
