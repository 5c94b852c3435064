"""What a decoder looks like, read from its config.json: families are data, not code."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specdec_onnx.export.families import FAMILIES, Family
from specdec_onnx.export.rope import Rope, read_rope
from specdec_onnx.export.spans import Span, read_spans
from specdec_onnx.models.errors import SpecdecError

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}


@dataclass(frozen=True)
class Scales:
    """Factors some families put on parts of the model; a cap c bounds x to c·tanh(x/c), 0 leaves it."""

    embedding: float = 1.0
    attention: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention_cap: float = 0.0
    logits_cap: float = 0.0


@dataclass(frozen=True)
class Architecture:
    """Sizes and switches of one decoder; everything the graph builder asks for."""

    model_type: str
    family: Family
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    epsilon: float
    rope: Rope
    spans: tuple[Span, ...]
    scales: Scales
    activation: str
    context: int
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Rows of the query, key and value projections."""
        return self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim


def read_architecture(config: Mapping[str, Any], positions: int = 0) -> Architecture:
    """The architecture a config.json describes, for texts of up to `positions` (0: as short as it was trained on).

    SpecdecError for a family or feature not supported.
    """
    family = _family(config)
    heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    head_dim = int(config.get("head_dim") or hidden // heads)
    attention_bias = bool(config.get("attention_bias", False))
    context = _size(config, "max_position_embeddings")
    layers = _size(config, "num_hidden_layers")
    rope = read_rope(config, head_dim, context).within(min(positions, context))
    _require_whole_vectors(head_dim, 2 * len(rope.inverse_frequencies))
    local = read_rope(config, head_dim, context, "sliding_attention")
    return Architecture(
        model_type=config["model_type"],
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        intermediate=_size(config, "intermediate_size"),
        vocabulary=_size(config, "vocab_size"),
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
        rope=rope,
        spans=read_spans(config, family, layers, rope, local),
        scales=_scales(config, family, head_dim),
        activation=_activation(config, family),
        context=context,
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


def _family(config: Mapping[str, Any]) -> Family:
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise SpecdecError(
            f"cannot export a model of type {kind!r}",
            f"the graph builder knows these families: {known}",
            "add --graph portable (needs specdec-onnx[optimum]), or choose a model of one of them",
        )
    return FAMILIES[kind]


def _scales(config: Mapping[str, Any], family: Family, head_dim: int) -> Scales:
    """Granite's multipliers and Gemma's caps; what a config.json doesn't name is left alone."""
    embedding = float(config["hidden_size"]) ** 0.5 if family.scaled_embedding else 1.0
    attention = float(config.get("query_pre_attn_scalar") or head_dim) ** -0.5
    return Scales(
        embedding=float(config.get("embedding_multiplier") or embedding),
        attention=float(config.get("attention_multiplier") or attention),
        residual=float(config.get("residual_multiplier") or 1.0),
        logits=1 / float(config.get("logits_scaling") or 1.0),
        attention_cap=float(config.get("attn_logit_softcapping") or 0.0),
        logits_cap=float(config.get("final_logit_softcapping") or 0.0),
    )


def _activation(config: Mapping[str, Any], family: Family) -> str:
    name = config.get("hidden_activation") or config.get("hidden_act") or family.activation
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise SpecdecError(f"activation {name!r} is not supported", f"the graph builder knows {known}")
    return _ACTIVATIONS[name]


def _require_whole_vectors(head_dim: int, rotated: int) -> None:
    if head_dim % 16 or rotated % 16:
        size = f"{head_dim}" if head_dim % 16 else f"{head_dim} of which {rotated} are rotated"
        raise SpecdecError(
            f"heads of size {size} are not supported",
            "ONNX Runtime's fused attention takes multiples of 16",
            "choose another model",
        )


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise SpecdecError(
            f"config.json: {key} is {value!r}",
            "a positive whole number is needed",
            "check that the source is complete",
        )
    return value
