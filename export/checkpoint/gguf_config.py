"""A Hugging Face config.json from a GGUF file's metadata: everything is read, nothing is assumed."""

from collections.abc import Mapping
from typing import Any

from specdec_onnx.export.checkpoint.gguf_families import Family, family_of
from specdec_onnx.export.checkpoint.gguf_file import GgufFile
from specdec_onnx.export.checkpoint.gguf_rope import rope_config
from specdec_onnx.export.checkpoint.gguf_settings import Settings


def gguf_config(gguf: GgufFile) -> dict[str, Any]:
    """The config.json of the model in a GGUF file; SpecdecError for what is missing or not understood."""
    family = family_of(gguf.path.name, gguf.metadata)
    settings = Settings(gguf.path.name, gguf.metadata)
    sizes = _sizes(settings)
    config = _model(family, gguf) | sizes | rope_config(family, settings, gguf, sizes["head_dim"])
    config |= _token_ids(gguf.metadata) | _numbers(family, settings) | _windows(family, settings)
    return config | _attention_scalar(family, sizes) | dict(family.settings)


def _model(family: Family, gguf: GgufFile) -> dict[str, Any]:
    names, embedding = gguf.tensors, gguf.tensors.get("token_embd.weight")
    biased = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    return {
        "architectures": [family.hugging_face],
        "model_type": family.model_type,
        "vocab_size": embedding.rows if embedding else 0,
        "tie_word_embeddings": "output.weight" not in names,
        "torch_dtype": "float32",
    } | {key: name in names for key, name in biased.items() if family.optional_biases}


def _sizes(settings: Settings) -> dict[str, Any]:
    hidden, heads = settings.count("embedding_length"), settings.count("attention.head_count")
    head_dim = settings.count("attention.key_length", hidden // heads)
    if settings.count("attention.value_length", head_dim) != head_dim:
        found = settings.get("attention.value_length")
        raise settings.problem("attention.value_length", f"{found}, not the head size {head_dim}")
    if settings.get("expert_count"):
        raise settings.problem(
            "expert_count", f"{settings.get('expert_count')}: mixtures of experts are not read"
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


def _numbers(family: Family, settings: Settings) -> dict[str, Any]:
    """Factors and caps, where they are stored."""
    return {
        ours: float(settings.number(theirs))
        for theirs, ours in family.numbers.items()
        if settings.get(theirs)
    }


def _windows(family: Family, settings: Settings) -> dict[str, Any]:
    """The sliding window, 0 or none meaning the whole text, and which layers have it where that is stored."""
    key, pattern = "attention.sliding_window", settings.get("attention.sliding_window_pattern")
    window = settings.get(key)
    if family.windows == "none" and window:
        raise settings.problem(key, f"{window}; {family.model_type} is read without windows")
    if family.windows == "ignored" or (family.windows != "always" and not window):
        return {}
    found: dict[str, Any] = {"sliding_window": settings.count(key, family.default_window or None)}
    if isinstance(pattern, list):
        kinds = {True: "sliding_attention", False: "full_attention"}
        found["layer_types"] = [kinds[bool(sliding)] for sliding in pattern]
    elif pattern is not None:
        found["sliding_window_pattern"] = settings.count("attention.sliding_window_pattern")
    return found


def _attention_scalar(family: Family, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Gemma's largest size divides by another root than its head size's; files do not say so, only its depth does."""
    if family.largest_layers != sizes["num_hidden_layers"]:
        return {}
    return {"query_pre_attn_scalar": sizes["hidden_size"] // sizes["num_attention_heads"]}


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {ours: metadata.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in keys.items()}
    return {key: value for key, value in ids.items() if isinstance(value, int)}
