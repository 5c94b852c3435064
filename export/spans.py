"""How far each layer looks back, and whether it sees positions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specdec_onnx.export.families import Family
from specdec_onnx.export.rope import Rope
from specdec_onnx.models.errors import SpecdecError

_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Span:
    """One layer's attention: the last `window` tokens with its own (0: all), rotated by `rope` if it has one."""

    window: int
    rope: Rope | None


def read_spans(
    config: Mapping[str, Any], family: Family, layers: int, rope: Rope, local: Rope
) -> tuple[Span, ...]:
    """The span of every layer; `local` is the rotary embedding of those with a window."""
    window, spans = _window(config, family), []
    for index, sliding in enumerate(_sliding(config, family, layers)):
        turns = _rotates(config, family, index)
        own = local if sliding and family.local_rope else rope
        spans.append(Span(window if sliding else 0, own if turns else None))
    return tuple(spans)


def _window(config: Mapping[str, Any], family: Family) -> int:
    if family.windows_on_request and not config.get("use_sliding_window"):
        return 0
    window = int(config.get("sliding_window") or 0)
    return window if window < int(config["max_position_embeddings"]) else 0


def _sliding(config: Mapping[str, Any], family: Family, layers: int) -> list[bool]:
    """Which layers have the window; `layer_types` says it layer by layer, older files by a rule."""
    if kinds := config.get("layer_types"):
        if len(kinds) != layers or not set(kinds) <= set(_KINDS):
            why = f"layer_types must name {layers} layers as {' or '.join(_KINDS)}"
            raise SpecdecError("config.json: layer_types cannot be used", why, "choose another model")
        return [kind == "sliding_attention" for kind in kinds]
    if family.windows_on_request:
        first = int(config.get("max_window_layers") or 0)
        return [index >= first for index in range(layers)]
    every = int(config.get("sliding_window_pattern") or family.full_every)
    return [every == 0 or (index + 1) % every != 0 for index in range(layers)]


def _rotates(config: Mapping[str, Any], family: Family, index: int) -> bool:
    """`no_rope_layers` holds a 1 for each layer with rotary embedding, whatever its name says."""
    listed = config.get("no_rope_layers")
    if listed and family.without_rope_every:
        return bool(listed[index])
    every = int(config.get("no_rope_layer_interval") or family.without_rope_every)
    return not family.without_rope_every or (index + 1) % every != 0
