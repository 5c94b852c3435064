"""GGUF architectures as data: the Hugging Face names, axes and settings of each; a new one is a row of GGUF_FAMILIES."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specdec_onnx.models.errors import SpecdecError

Axes = tuple[str, ...]

ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
_SINGLES: Mapping[str, tuple[str, Axes]] = {
    "token_embd": ("model.embed_tokens", ("vocab", "hidden")),
    "output_norm": ("model.norm", ("hidden",)),
    "output": ("lm_head", ("vocab", "hidden")),
}
_PER_LAYER: Mapping[str, tuple[str, Axes]] = {
    "attn_norm": ("input_layernorm", ("hidden",)),
    "attn_q": ("self_attn.q_proj", ("query", "hidden")),
    "attn_k": ("self_attn.k_proj", ("key", "hidden")),
    "attn_v": ("self_attn.v_proj", ("key", "hidden")),
    "attn_output": ("self_attn.o_proj", ("hidden", "query")),
    "ffn_norm": ("post_attention_layernorm", ("hidden",)),
    "ffn_gate": ("mlp.gate_proj", ("inner", "hidden")),
    "ffn_up": ("mlp.up_proj", ("inner", "hidden")),
    "ffn_down": ("mlp.down_proj", ("hidden", "inner")),
}
_LINEAR = frozenset(name for name, (_, axes) in _PER_LAYER.items() if len(axes) == 2)
_HEAD_NORMS: Mapping[str, tuple[str, Axes]] = {
    "attn_q_norm": ("self_attn.q_norm", ("head",)),
    "attn_k_norm": ("self_attn.k_norm", ("head",)),
}
_POST_NORMS: Mapping[str, tuple[str, Axes]] = {
    "post_attention_norm": ("post_attention_layernorm", ("hidden",)),
    "post_ffw_norm": ("post_feedforward_layernorm", ("hidden",)),
}
_GEMMA: Mapping[str, tuple[str, Axes]] = {
    **_PER_LAYER,
    **_POST_NORMS,
    "ffn_norm": ("pre_feedforward_layernorm", ("hidden",)),
}
_OLMO: Mapping[str, tuple[str, Axes]] = {
    **{kind: slot for kind, slot in _PER_LAYER.items() if kind in _LINEAR},
    **_POST_NORMS,
    "attn_q_norm": ("self_attn.q_norm", ("query",)),
    "attn_k_norm": ("self_attn.k_norm", ("key",)),
}
_PHI: Mapping[str, tuple[str, Axes]] = {
    **{kind: _PER_LAYER[kind] for kind in ("attn_norm", "attn_output", "ffn_norm", "ffn_down")},
    "attn_qkv": ("self_attn.qkv_proj", ("qkv", "hidden")),
    "ffn_up": ("mlp.gate_up_proj", ("gate_up", "hidden")),
}
_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
_SILU = {"hidden_act": "silu"}


@dataclass(frozen=True)
class GgufFamily:
    """One architecture.

    Args:
        model_type: Its name in config.json.
        hugging_face: The class that config.json names.
        biases: Tensors that have a bias.
        optional_biases: Tensors that may have one.
        interleaved: Tensors that hold a head's rows in rotary pairs: 0, d/2, 1, d/2 + 1, ...
        settings: Further entries of config.json.
        norm_offset: Added by converters to every norm.
        numbers: Metadata entries that config.json has by another name.
        windows: Whether files name a sliding window: always (else it is `default_window`), some do, none may, or
            it is ignored.
        default_window: The window of files that name none, in tokens.
        local_rope: Base of the rotary embedding in layers with a window; 0: as in the others.
        partial_rope: Whether only a part of each head may be rotated.
        config_tensors: Tensors that belong to the configuration.
        largest_layers: Number of layers of the size that scales attention its own way.
        singles: Tensors outside the layers, by GGUF name.
        per_layer: Tensors of a layer, by GGUF name.
    """

    model_type: str
    hugging_face: str
    biases: frozenset[str] = frozenset()
    optional_biases: frozenset[str] = frozenset()
    interleaved: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=lambda: _SILU)
    norm_offset: float = 0.0
    numbers: Mapping[str, str] = field(default_factory=dict)
    windows: Literal["ignored", "always", "some", "none"] = "ignored"
    default_window: int = 0
    local_rope: float = 0.0
    partial_rope: bool = False
    config_tensors: frozenset[str] = frozenset({ROPE_FACTORS})
    largest_layers: int = 0
    singles: Mapping[str, tuple[str, Axes]] = field(default_factory=lambda: _SINGLES)
    per_layer: Mapping[str, tuple[str, Axes]] = field(default_factory=lambda: _PER_LAYER)


GGUF_FAMILIES = {
    "llama": GgufFamily(
        model_type="llama",
        hugging_face="LlamaForCausalLM",
        optional_biases=_LINEAR,
        interleaved=frozenset({"attn_q", "attn_k"}),
    ),
    "qwen2": GgufFamily(
        model_type="qwen2",
        hugging_face="Qwen2ForCausalLM",
        biases=frozenset({"attn_q", "attn_k", "attn_v"}),
        settings={"hidden_act": "silu", "use_sliding_window": False},
    ),
    "qwen3": GgufFamily(
        model_type="qwen3",
        hugging_face="Qwen3ForCausalLM",
        settings={"hidden_act": "silu", "use_sliding_window": False, "attention_bias": False},
        per_layer={**_PER_LAYER, **_HEAD_NORMS},
    ),
    "gemma2": GgufFamily(
        model_type="gemma2",
        hugging_face="Gemma2ForCausalLM",
        settings=_GELU,
        per_layer=_GEMMA,
        norm_offset=1.0,
        numbers=_CAPS,
        windows="always",
        default_window=4096,
        largest_layers=46,
    ),
    "gemma3": GgufFamily(
        model_type="gemma3_text",
        hugging_face="Gemma3ForCausalLM",
        settings=_GELU,
        per_layer={**_GEMMA, **_HEAD_NORMS},
        norm_offset=1.0,
        numbers=_CAPS,
        windows="always",
        local_rope=10000.0,
        largest_layers=62,
    ),
    "granite": GgufFamily(
        model_type="granite",
        hugging_face="GraniteForCausalLM",
        optional_biases=_LINEAR,
        interleaved=frozenset({"attn_q", "attn_k"}),
        numbers={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
    "olmo2": GgufFamily(model_type="olmo2", hugging_face="Olmo2ForCausalLM", per_layer=_OLMO, windows="none"),
    "phi3": GgufFamily(
        model_type="phi3",
        hugging_face="Phi3ForCausalLM",
        per_layer=_PHI,
        windows="some",
        partial_rope=True,
        config_tensors=frozenset({LONG_FACTORS, SHORT_FACTORS}),
    ),
    "smollm3": GgufFamily(
        model_type="smollm3",
        hugging_face="SmolLM3ForCausalLM",
        settings={**_SILU, "no_rope_layer_interval": 4, "use_sliding_window": False},
        optional_biases=_LINEAR,
        interleaved=frozenset({"attn_q", "attn_k"}),
    ),
}


@dataclass(frozen=True)
class Slot:
    """One tensor a model of a family has, or may have."""

    name: str
    axes: Axes
    required: bool
    interleaved: bool
    offset: float


def family_of(file: str, metadata: Mapping[str, Any]) -> GgufFamily:
    """The family that `general.architecture` names; SpecdecError if it is none of GGUF_FAMILIES."""
    name = str(metadata.get("general.architecture", ""))
    if name in GGUF_FAMILIES:
        return GGUF_FAMILIES[name]
    raise SpecdecError(
        f"{file} holds a model of {f'architecture {name!r}' if name else 'an unnamed architecture'}",
        f"GGUF is supported for {', '.join(sorted(GGUF_FAMILIES))}",
        "give the model's safetensors folder or hub id instead, or choose one of these architectures",
    )


def slots(family: GgufFamily, layers: int) -> Iterator[tuple[str, Slot]]:
    """Every tensor of a model with `layers` layers, by GGUF name; lazily, because a damaged file may claim a huge count."""
    for kind, (name, axes) in family.singles.items():
        yield from _slots_of(family, kind, kind, name, axes)
    for layer in range(layers):
        for kind, (name, axes) in family.per_layer.items():
            yield from _slots_of(family, kind, f"blk.{layer}.{kind}", f"model.layers.{layer}.{name}", axes)


def _slots_of(family: GgufFamily, kind: str, stem: str, name: str, axes: Axes) -> Iterator[tuple[str, Slot]]:
    interleaved = kind in family.interleaved
    offset = family.norm_offset if kind.endswith("norm") else 0.0
    yield f"{stem}.weight", Slot(f"{name}.weight", axes, kind != "output", interleaved, offset)
    if kind in family.biases | family.optional_biases:
        yield f"{stem}.bias", Slot(f"{name}.bias", axes[:1], kind in family.biases, interleaved, 0.0)
