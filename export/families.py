"""What sets each family of decoders apart, as data: a new one is a row here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Norms = Mapping[str, str]
"""Where a block's norms stand, and what a checkpoint calls them."""

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
    """One `model_type`; a bias of None is left to `attention_bias` in config.json.

    `norm_offset` is added to every norm's stored weight. `qk_norm` spans each head, or the whole projection.
    `fused` checkpoints hold query, key and value as one matrix, gate and up as another. Layers n, 2n, ... of
    `full_every` see the whole text, the others a sliding window (0: all others); `windows_on_request` if config.json
    says use_sliding_window, with `local_rope` if they turn at their own speed. Layers n, 2n, ... of `without_rope_every` have no rotary embedding. `genai_type` is
    what ONNX Runtime GenAI calls it, where that is another name.
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
