"""What a decoder looks like, read from its config.json: families are data, not code."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specdec_onnx.export.rope import Rope, read_rope
from specdec_onnx.models.errors import SpecdecError


@dataclass(frozen=True)
class Family:
    """What sets a family apart; None leaves a switch to `attention_bias` in config.json."""

    qkv_bias: bool | None = None
    output_bias: bool | None = None


FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "qwen2": Family(qkv_bias=True, output_bias=False),
}


@dataclass(frozen=True)
class Architecture:
    """Sizes and switches of one decoder; everything the graph builder asks for."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    epsilon: float
    rope: Rope
    context: int
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Rows of the query, key and value projections."""
        return self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture a config.json describes; SpecdecError for a family or feature not supported."""
    family = _family(config)
    _refuse_unsupported(config)
    heads = _size(config, "num_attention_heads")
    hidden = _size(config, "hidden_size")
    head_dim = int(config.get("head_dim") or hidden // heads)
    attention_bias = bool(config.get("attention_bias", False))
    context = _size(config, "max_position_embeddings")
    return Architecture(
        model_type=config["model_type"],
        layers=_size(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        intermediate=_size(config, "intermediate_size"),
        vocabulary=_size(config, "vocab_size"),
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
        rope=read_rope(config, head_dim, context),
        context=context,
        tied=bool(config.get("tie_word_embeddings", False)),
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
            "choose a model of one of them",
        )
    return FAMILIES[kind]


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise SpecdecError(
            f"activation {activation!r} is not supported", "the graph builder writes SiLU gates only"
        )
    if config.get("use_sliding_window") and config.get("sliding_window"):
        raise SpecdecError(
            "sliding-window attention is not supported",
            "config.json sets use_sliding_window",
            "use a full-attention model",
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
