"""What is known of each GGUF architecture, as data: its tensors' Hugging Face names, axes and settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from specdec_onnx.models.errors import SpecdecError

Axes = tuple[str, ...]

ROPE_FACTORS = "rope_freqs.weight"
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


@dataclass(frozen=True)
class Family:
    """One architecture; `interleaved` tensors hold a head's rows in rotary pairs: 0, d/2, 1, d/2 + 1, ..."""

    model_type: str
    hugging_face: str
    biases: frozenset[str] = frozenset()
    optional_biases: frozenset[str] = frozenset()
    interleaved: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=lambda: {"hidden_act": "silu"})
    singles: Mapping[str, tuple[str, Axes]] = field(default_factory=lambda: _SINGLES)
    per_layer: Mapping[str, tuple[str, Axes]] = field(default_factory=lambda: _PER_LAYER)


FAMILIES = {
    "llama": Family(
        model_type="llama",
        hugging_face="LlamaForCausalLM",
        optional_biases=_LINEAR,
        interleaved=frozenset({"attn_q", "attn_k"}),
    ),
    "qwen2": Family(
        model_type="qwen2",
        hugging_face="Qwen2ForCausalLM",
        biases=frozenset({"attn_q", "attn_k", "attn_v"}),
        settings={"hidden_act": "silu", "use_sliding_window": False},
    ),
    "qwen3": Family(
        model_type="qwen3",
        hugging_face="Qwen3ForCausalLM",
        settings={"hidden_act": "silu", "use_sliding_window": False, "attention_bias": False},
        per_layer={
            **_PER_LAYER,
            "attn_q_norm": ("self_attn.q_norm", ("head",)),
            "attn_k_norm": ("self_attn.k_norm", ("head",)),
        },
    ),
}


@dataclass(frozen=True)
class Slot:
    """One tensor a model of a family has, or may have."""

    name: str
    axes: Axes
    required: bool
    interleaved: bool


def family_of(file: str, metadata: Mapping[str, Any]) -> Family:
    """The family that `general.architecture` names; SpecdecError if it is none of FAMILIES."""
    name = str(metadata.get("general.architecture", ""))
    if name in FAMILIES:
        return FAMILIES[name]
    raise SpecdecError(
        f"{file} holds a model of {f'architecture {name!r}' if name else 'no named architecture'}",
        f"GGUF files of {', '.join(sorted(FAMILIES))} can be read",
        "give the model's safetensors folder or hub id instead, or choose one of these architectures",
    )


def slots(family: Family, layers: int) -> Iterator[tuple[str, Slot]]:
    """Every tensor of a model with `layers` layers, by GGUF name, one by one: a damaged count may be huge."""
    for kind, (name, axes) in family.singles.items():
        yield from _of_stem(family, kind, kind, name, axes)
    for layer in range(layers):
        for kind, (name, axes) in family.per_layer.items():
            yield from _of_stem(family, kind, f"blk.{layer}.{kind}", f"model.layers.{layer}.{name}", axes)


def _of_stem(family: Family, kind: str, stem: str, name: str, axes: Axes) -> Iterator[tuple[str, Slot]]:
    interleaved = kind in family.interleaved
    yield f"{stem}.weight", Slot(f"{name}.weight", axes, kind != "output", interleaved)
    if kind in family.biases | family.optional_biases:
        yield f"{stem}.bias", Slot(f"{name}.bias", axes[:1], kind in family.biases, interleaved)
