"""The rotary embedding a GGUF file describes, as config.json says it."""

from math import log
from typing import Any

from specdec_onnx.export.checkpoint.gguf_families import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, Family
from specdec_onnx.export.checkpoint.gguf_file import GgufFile
from specdec_onnx.export.checkpoint.gguf_settings import Settings, shortest

_YARN = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
_SCALING_KNOWN = {"type", "factor", "original_context_length", "attn_factor", "finetuned", *_YARN}


def rope_config(family: Family, settings: Settings, gguf: GgufFile, head_dim: int) -> dict[str, Any]:
    """The entries of config.json that turn positions into angles; SpecdecError for a scaling not understood."""
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


def _scaling(settings: Settings, gguf: GgufFile) -> dict[str, Any] | None:
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
    raise settings.problem("rope.scaling.type", f"{kind!r}{bare}; linear and yarn are read")


def _yarn(settings: Settings) -> dict[str, Any]:
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


def _longrope(settings: Settings, gguf: GgufFile) -> dict[str, Any]:
    """Factors lie in tensors; the attention factor, where it is stored, is the whole of it."""
    scaling: dict[str, Any] = {
        "type": "longrope",
        "original_max_position_embeddings": settings.count("rope.scaling.original_context_length"),
    }
    for key, name in (("short_factor", SHORT_FACTORS), ("long_factor", LONG_FACTORS)):
        if name not in gguf.tensors:
            raise settings.problem("rope.scaling.type", f"longrope, but there is no tensor {name}")
        scaling[key] = [shortest(factor) for factor in gguf.tensors[name].dequantized()]
    if settings.get("rope.scaling.attn_factor"):
        scaling["attention_factor"] = settings.number("rope.scaling.attn_factor")
    return scaling
