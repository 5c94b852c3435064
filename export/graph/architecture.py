"""The architecture of a decoder, read from its config.json: a new family is a row of FAMILIES, not code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from specdec_onnx.export.graph.rope import Rope, read_rope
from specdec_onnx.export.graph.settings import Settings
from specdec_onnx.models.errors import SpecdecError

Norms = Mapping[str, str]
"""The positions of a layer's norms, and their names in a checkpoint."""

_LLAMA_NORMS: Norms = MappingProxyType(
    {"before_attention": "input_layernorm", "before_feed_forward": "post_attention_layernorm"}
)
_GEMMA_NORMS: Norms = MappingProxyType(
    {
        "before_attention": "input_layernorm",
        "after_attention": "post_attention_layernorm",
        "before_feed_forward": "pre_feedforward_layernorm",
        "after_feed_forward": "post_feedforward_layernorm",
    }
)
_OLMO_NORMS: Norms = MappingProxyType(
    {"after_attention": "post_attention_layernorm", "after_feed_forward": "post_feedforward_layernorm"}
)


@dataclass(frozen=True)
class Family:
    """One `model_type`.

    Args:
        qkv_bias: Whether query, key and value have a bias; None: `attention_bias` in config.json says it.
        output_bias: Likewise for the output projection of attention.
        norms: Which norms a layer has, and their names in a checkpoint.
        norm_offset: Added to every norm's stored weight.
        qk_norm: Whether query and key are normed before the rotation: each "head", or the whole "projection".
        fused: Whether checkpoints store query, key and value as one matrix, gate and up as another.
        full_every: Layers n, 2n, ... see the whole text, the others a sliding window (0: all have the window).
        windows_on_request: Whether there are windows only if config.json has use_sliding_window.
        local_rope: Whether layers with a window have their own rotary frequencies.
        without_rope_every: Layers n, 2n, ... have no rotary embedding (0: all have one).
        scaled_embedding: Whether embeddings are multiplied by the root of their size.
        activation: The activation where config.json names none.
        tied: Whether the head is the embedding table where config.json does not say.
        genai_type: The family's name in ONNX Runtime GenAI, if it differs.
    """

    qkv_bias: bool | None = None
    output_bias: bool | None = None
    norms: Norms = field(default_factory=lambda: _LLAMA_NORMS)
    norm_offset: float = 0.0
    qk_norm: Literal["", "head", "projection"] = ""
    fused: bool = False
    full_every: int = 1
    windows_on_request: bool = False
    local_rope: bool = False
    without_rope_every: int = 0
    scaled_embedding: bool = False
    activation: str = "silu"
    tied: bool = False
    genai_type: str = ""


FAMILIES: Mapping[str, Family] = {
    "gemma2": Family(
        norms=_GEMMA_NORMS,
        norm_offset=1.0,
        full_every=2,
        scaled_embedding=True,
        activation="gelu_pytorch_tanh",
        tied=True,
    ),
    "gemma3_text": Family(
        norms=_GEMMA_NORMS,
        norm_offset=1.0,
        qk_norm="head",
        full_every=6,
        local_rope=True,
        scaled_embedding=True,
        activation="gelu_pytorch_tanh",
        tied=True,
    ),
    "granite": Family(),
    "llama": Family(),
    "mistral": Family(qkv_bias=False, output_bias=False, full_every=0),
    "olmo2": Family(norms=_OLMO_NORMS, qk_norm="projection", genai_type="olmo"),
    "phi3": Family(qkv_bias=False, output_bias=False, fused=True, full_every=0),
    "qwen2": Family(qkv_bias=True, output_bias=False, windows_on_request=True),
    "qwen3": Family(qk_norm="head", windows_on_request=True),
    "smollm3": Family(without_rope_every=4, tied=True),
}

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Span:
    """One layer's attention: the last `window` tokens with its own (0: all), rotated by `rope` if it has one."""

    window: int
    rope: Rope | None


@dataclass(frozen=True)
class Scales:
    """Factors of some families; a cap c bounds x to c·tanh(x/c), 0 means none."""

    embedding: float = 1.0
    attention: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention_cap: float = 0.0
    logits_cap: float = 0.0


@dataclass(frozen=True)
class Architecture:
    """Sizes and switches of one decoder: everything the graph builder needs."""

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
    """The architecture that a config.json describes, for texts of up to `positions` tokens (0: short texts).

    SpecdecError for a family or feature not supported.
    """
    family, settings = _family(config), Settings(config)
    heads, hidden = settings.size("num_attention_heads"), settings.size("hidden_size")
    head_dim = settings.count("head_dim") or hidden // heads
    kv_heads = settings.count("num_key_value_heads") or heads
    _require_whole_heads(settings, heads, kv_heads, head_dim)
    attention_bias = settings.flag("attention_bias")
    context, layers = settings.size("max_position_embeddings"), settings.size("num_hidden_layers")
    rope = read_rope(config, head_dim, context).within(min(positions, context))
    _require_whole_vectors(head_dim, 2 * len(rope.inverse_frequencies))
    local = read_rope(config, head_dim, context, "sliding_attention")
    return Architecture(
        model_type=config["model_type"],
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=settings.size("intermediate_size"),
        vocabulary=settings.size("vocab_size"),
        epsilon=settings.number("rms_norm_eps", 1e-6),
        rope=rope,
        spans=_spans(settings, family, layers, rope, local),
        scales=_scales(settings, family, head_dim),
        activation=_activation(settings, family),
        context=context,
        tied=settings.flag("tie_word_embeddings", family.tied),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=settings.flag("mlp_bias"),
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


def _scales(config: Settings, family: Family, head_dim: int) -> Scales:
    """Granite's multipliers and Gemma's caps, where config.json has them."""
    embedding = config.number("hidden_size") ** 0.5 if family.scaled_embedding else 1.0
    attention = (config.number("query_pre_attn_scalar") or head_dim) ** -0.5
    return Scales(
        embedding=config.number("embedding_multiplier") or embedding,
        attention=config.number("attention_multiplier") or attention,
        residual=config.number("residual_multiplier") or 1.0,
        logits=1 / (config.number("logits_scaling") or 1.0),
        attention_cap=config.number("attn_logit_softcapping"),
        logits_cap=config.number("final_logit_softcapping"),
    )


def _activation(config: Settings, family: Family) -> str:
    name = config.word("hidden_activation") or config.word("hidden_act") or family.activation
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise SpecdecError(f"activation {name!r} is not supported", f"the graph builder knows {known}")
    return _ACTIVATIONS[name]


def _require_whole_heads(config: Settings, heads: int, kv_heads: int, head_dim: int) -> None:
    if not head_dim:
        raise config.problem("num_attention_heads", "hidden_size has fewer dimensions than there are heads")
    if heads % kv_heads:
        raise config.problem("num_key_value_heads", f"{heads} attention heads cannot share them evenly")


def _require_whole_vectors(head_dim: int, rotated: int) -> None:
    if head_dim % 16 or rotated % 16:
        size = f"{head_dim}" if head_dim % 16 else f"{head_dim} of which {rotated} are rotated"
        raise SpecdecError(
            f"heads of size {size} are not supported",
            "ONNX Runtime's fused attention takes multiples of 16",
            "choose another model",
        )


def _spans(config: Settings, family: Family, layers: int, rope: Rope, local: Rope) -> tuple[Span, ...]:
    """The span of every layer; `local` is the rotary embedding of those with a window."""
    window, spans = _window(config, family), []
    for index, sliding in enumerate(_sliding(config, family, layers)):
        own = local if sliding and family.local_rope else rope
        spans.append(Span(window if sliding else 0, own if _rotates(config, family, index) else None))
    return tuple(spans)


def _window(config: Settings, family: Family) -> int:
    if family.windows_on_request and not config.flag("use_sliding_window"):
        return 0
    window = config.count("sliding_window")
    return window if window < config.size("max_position_embeddings") else 0


def _sliding(config: Settings, family: Family, layers: int) -> list[bool]:
    """Which layers have the window: `layer_types` lists them, older files have a rule."""
    if kinds := config.words("layer_types"):
        if len(kinds) != layers or not set(kinds) <= set(_KINDS):
            why = f"layer_types must name {layers} layers as {' or '.join(_KINDS)}"
            raise SpecdecError("config.json: layer_types cannot be used", why, "choose another model")
        return [kind == "sliding_attention" for kind in kinds]
    if family.windows_on_request:
        first = config.count("max_window_layers")
        return [index >= first for index in range(layers)]
    every = config.count("sliding_window_pattern") or family.full_every
    return [every == 0 or (index + 1) % every != 0 for index in range(layers)]


def _rotates(config: Settings, family: Family, index: int) -> bool:
    """`no_rope_layers` holds a 1 for each layer with rotary embedding, whatever its name says."""
    listed = config.numbers("no_rope_layers")
    if listed and family.without_rope_every:
        if index >= len(listed):
            raise config.problem("no_rope_layers", "it must have a number for each layer")
        return bool(listed[index])
    every = config.count("no_rope_layer_interval") or family.without_rope_every
    return not family.without_rope_every or (index + 1) % every != 0
