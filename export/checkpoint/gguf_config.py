"""A Hugging Face config.json from a GGUF file's metadata; what is not understood is refused."""

from collections.abc import Mapping
from math import inf, log
from typing import Any

import numpy as np

from specdec_onnx.export.checkpoint.gguf_families import (
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    GgufFamily,
    family_of,
)
from specdec_onnx.export.checkpoint.gguf_file import GgufFile
from specdec_onnx.models.errors import SpecdecError

_YARN = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
_SCALING_KNOWN = {"type", "factor", "original_context_length", "attn_factor", "finetuned", *_YARN}


def gguf_config(gguf: GgufFile) -> dict[str, Any]:
    """The config.json of the model in a GGUF file; SpecdecError for an entry that is missing or not understood."""
    family = family_of(gguf.path.name, gguf.metadata)
    settings = _Settings(gguf.path.name, gguf.metadata)
    sizes = _sizes(settings)
    config = _model(family, gguf) | sizes | _rope(family, settings, gguf, sizes["head_dim"])
    config |= _token_ids(gguf.metadata) | _numbers(family, settings) | _windows(family, settings)
    return config | _attention_scalar(family, sizes) | dict(family.settings)


class _Settings:
    """The metadata entries of one architecture, by key without its prefix."""

    def __init__(self, file: str, metadata: Mapping[str, Any]) -> None:
        self.file, self.metadata = file, metadata
        self.prefix = f"{metadata['general.architecture']}."

    def number(self, key: str, default: float | None = None) -> Any:
        """One positive number, floats by their shortest decimal; SpecdecError otherwise."""
        value = self.metadata.get(self.prefix + key, default)
        if isinstance(value, list) and value and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            raise self.problem(key, value)
        return _shortest(value) if isinstance(value, float) else value

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
        """The rest of the keys that begin with `start`."""
        whole = self.prefix + start
        return {key.removeprefix(whole) for key in self.metadata if key.startswith(whole)}

    def problem(self, key: str, value: Any) -> SpecdecError:
        """The error for an entry that is missing or has a value that cannot be used."""
        state = "is missing" if value is None else f"is {str(value)[:60]}"
        why = f"its metadata entry {self.prefix}{key} {state}"
        return SpecdecError(f"{self.file} does not describe its model", why, "convert the model again")


def _model(family: GgufFamily, gguf: GgufFile) -> dict[str, Any]:
    names, embedding = gguf.tensors, gguf.tensors.get("token_embd.weight")
    biased = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    return {
        "architectures": [family.hugging_face],
        "model_type": family.model_type,
        "vocab_size": embedding.rows if embedding else 0,
        "tie_word_embeddings": "output.weight" not in names,
        "torch_dtype": "float32",
    } | {key: name in names for key, name in biased.items() if family.optional_biases}


def _sizes(settings: _Settings) -> dict[str, Any]:
    hidden, heads = settings.count("embedding_length"), settings.count("attention.head_count")
    head_dim = settings.count("attention.key_length", hidden // heads)
    if settings.count("attention.value_length", head_dim) != head_dim:
        length = settings.get("attention.value_length")
        raise settings.problem("attention.value_length", f"{length}, not the head size {head_dim}")
    if settings.get("expert_count"):
        raise settings.problem(
            "expert_count", f"{settings.get('expert_count')}: mixtures of experts are not supported"
        )
    return {
        "hidden_size": hidden,
        "intermediate_size": settings.count("feed_forward_length"),
        "num_hidden_layers": settings.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": settings.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": settings.count("context_length"),
        "rms_norm_eps": settings.number("attention.layer_norm_rms_epsilon"),
    }


def _numbers(family: GgufFamily, settings: _Settings) -> dict[str, Any]:
    """Factors and caps, where they are stored."""
    return {
        ours: float(settings.number(theirs))
        for theirs, ours in family.numbers.items()
        if settings.get(theirs)
    }


def _windows(family: GgufFamily, settings: _Settings) -> dict[str, Any]:
    """The sliding window (0 or none: the whole text), and which layers have it if the file says so."""
    key, pattern = "attention.sliding_window", settings.get("attention.sliding_window_pattern")
    window = settings.get(key)
    if family.windows == "none" and window:
        raise settings.problem(key, f"{window}; {family.model_type} is supported without windows")
    if family.windows == "ignored" or (family.windows != "always" and not window):
        return {}
    windows: dict[str, Any] = {"sliding_window": settings.count(key, family.default_window or None)}
    if isinstance(pattern, list):
        kinds = {True: "sliding_attention", False: "full_attention"}
        windows["layer_types"] = [kinds[bool(sliding)] for sliding in pattern]
    elif pattern is not None:
        windows["sliding_window_pattern"] = settings.count("attention.sliding_window_pattern")
    return windows


def _attention_scalar(family: GgufFamily, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Gemma's largest size divides attention by another root than its head size's; only its depth tells it apart."""
    if family.largest_layers != sizes["num_hidden_layers"]:
        return {}
    return {"query_pre_attn_scalar": sizes["hidden_size"] // sizes["num_attention_heads"]}


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {ours: metadata.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in keys.items()}
    return {key: value for key, value in ids.items() if isinstance(value, int)}


def _rope(family: GgufFamily, settings: _Settings, gguf: GgufFile, head_dim: int) -> dict[str, Any]:
    """The rotary entries of config.json; SpecdecError for a scaling that is not understood."""
    rope = {
        "rope_theta": settings.number("rope.freq_base", 10000.0),
        "rope_scaling": _scaling(settings, gguf),
    }
    if ROPE_FACTORS in gguf.tensors:
        rope["rope_freq_factors"] = gguf.tensors[ROPE_FACTORS].dequantized().tolist()
    if family.local_rope:
        rope["rope_local_base_freq"] = settings.number("rope.freq_base_swa", family.local_rope)
    rotated = settings.count("rope.dimension_count", head_dim)
    if rotated != head_dim and not (family.partial_rope and rotated < head_dim):
        raise settings.problem("rope.dimension_count", f"{rotated}, not the head size {head_dim}")
    if family.partial_rope:
        rope["partial_rotary_factor"] = rotated / head_dim
    return rope


def _scaling(settings: _Settings, gguf: GgufFile) -> dict[str, Any] | None:
    unknown = settings.group("rope.scaling.") - _SCALING_KNOWN
    if unknown:
        raise settings.problem(f"rope.scaling.{min(unknown)}", "not understood")
    kind = settings.get("rope.scaling.type") or ("linear" if settings.get("rope.scale_linear") else "none")
    if kind in ("none", "longrope") and LONG_FACTORS in gguf.tensors:
        return _longrope(settings, gguf)
    if kind == "none":
        return None
    if kind == "linear":
        key = "rope.scaling.factor" if settings.get("rope.scaling.type") else "rope.scale_linear"
        return {"rope_type": "linear", "factor": float(settings.number(key))}
    if kind == "yarn":
        return _yarn(settings)
    bare = " without factors" if kind == "longrope" else ""
    raise settings.problem("rope.scaling.type", f"{kind!r}{bare}; linear and yarn are supported")


def _yarn(settings: _Settings) -> dict[str, Any]:
    factor = float(settings.number("rope.scaling.factor"))
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": settings.count("rope.scaling.original_context_length"),
    }
    given = settings.group("rope.scaling.")
    scaling |= {ours: settings.number(f"rope.scaling.{key}") for key, ours in _YARN.items() if key in given}
    if "attn_factor" in given:  # GGUF multiplies YaRN's own attention factor, Hugging Face replaces it
        scaling["attention_factor"] = settings.number("rope.scaling.attn_factor") * (0.1 * log(factor) + 1.0)
    return scaling


def _longrope(settings: _Settings, gguf: GgufFile) -> dict[str, Any]:
    """The factors are tensors; a stored attention factor is the complete one."""
    scaling: dict[str, Any] = {
        "type": "longrope",
        "original_max_position_embeddings": settings.count("rope.scaling.original_context_length"),
    }
    for key, name in (("short_factor", SHORT_FACTORS), ("long_factor", LONG_FACTORS)):
        if name not in gguf.tensors:
            raise settings.problem("rope.scaling.type", f"longrope, but there is no tensor {name}")
        scaling[key] = [_shortest(factor) for factor in gguf.tensors[name].dequantized()]
    if settings.get("rope.scaling.attn_factor"):
        scaling["attention_factor"] = settings.number("rope.scaling.attn_factor")
    return scaling


def _shortest(value: "float | np.float32") -> float:
    """The shortest decimal that float32 holds as `value`, which is the number before it was stored."""
    return float(str(np.float32(value)))
