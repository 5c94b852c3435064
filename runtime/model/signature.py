"""The inputs and outputs of a decoder graph, read from the session and never from a table of model names."""

import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.graph_file import cache_axes

_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")
_TYPES: dict[str, type[np.generic]] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_ROWS_INTERACT = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")
_OPTIONAL = {"attention_mask", "position_ids", "num_logits_to_keep"}


@dataclass(frozen=True, slots=True)
class Signature:
    """Names, types and sizes of one decoder graph's inputs and outputs.

    Attributes:
        inputs: The names of all inputs.
        logits: The name of the output with the logits, [1, rows, columns].
        columns: The width of the logits: the vocabulary, or its kept part if the head is trimmed; with padding.
        logits_type: float32 or float16.
        caches: The names of the caches without their prefixes: "0.key", "0.value", "1.key" and so on.
        cache_heads: Key-value heads of each cache, [1, cache_heads, rows, cache_width].
        cache_width: Width of a head.
        cache_type: float32 or float16.
        shares_buffer: Whether past and present are one buffer that passes write in place (GroupQueryAttention).
    """

    inputs: frozenset[str]
    logits: str
    columns: int
    logits_type: type[np.generic]
    caches: tuple[str, ...]
    cache_heads: int
    cache_width: int
    cache_type: type[np.generic]
    shares_buffer: bool

    @property
    def keeps_rows(self) -> bool:
        """True when the graph can compute the logits of the last rows only."""
        return "num_logits_to_keep" in self.inputs


def read_signature(
    session: Any, graph: Path, columns: int, config: Mapping[str, Any] | None = None
) -> Signature:
    """Describe an open session.

    `columns` is used if the graph has no fixed width for the logits, the model's `config` if it has none for the cache.
    Raises SpecdecError, with the reason, for a graph that cannot verify drafts exactly.
    """
    inputs = {node.name: node for node in [*session.get_inputs(), *session.get_overridable_initializers()]}
    outputs = {node.name: node for node in session.get_outputs()}
    _refuse(graph, inputs, outputs)
    name = "trimmed_logits" if "trimmed_logits" in outputs else "logits"
    width = outputs[name].shape[2]
    heads, size, kind = _cache(graph, inputs, outputs, config or {})
    return Signature(
        inputs=frozenset(inputs),
        logits=name,
        columns=width if isinstance(width, int) else columns,
        logits_type=_type(graph, outputs[name]),
        caches=tuple(f"{m[1]}.{m[2]}" for m in map(_PAST.fullmatch, inputs) if m),
        cache_heads=heads,
        cache_width=size,
        cache_type=kind,
        shares_buffer=_mentions(graph, "GroupQueryAttention"),
    )


def _cache(
    graph: Path, inputs: dict[str, Any], outputs: dict[str, Any], config: Mapping[str, Any]
) -> tuple[int, int, type[np.generic]]:
    """Heads, width and type of every layer's cache; SpecdecError if they differ or are unknown."""
    kinds: dict[tuple[int, int, type[np.generic]], str] = {}
    for name, past in inputs.items():
        if not (part := _PAST.fullmatch(name)):
            continue
        shapes = [node.shape for node in (past, outputs.get(f"present.{part[1]}.{part[2]}")) if node]
        match past.shape:
            case [1 | str() | None, _, str() | None, _]:
                kinds.setdefault((*cache_axes(name, shapes, config), _type(graph, past)), name)
            case shape:
                raise _unusable(
                    graph,
                    f"{name} has the shape {shape} instead of [1, heads, number of tokens so far, width]",
                    "export the model again, with a cache that grows (specdec-export does)",
                )
    if len(kinds) > 1:
        sizes = "; ".join(f"{name}: {heads} heads, {width} wide" for (heads, width, _), name in kinds.items())
        raise _unusable(
            graph,
            f"its layers keep caches of different sizes or types ({sizes})",
            "choose a model whose layers all have the same kind of cache",
        )
    return next(iter(kinds))


def _unusable(graph: Path, why: str, fix: str = "") -> SpecdecError:
    return SpecdecError(f"{graph.name} cannot be used for speculative decoding", why, fix)


def _type(graph: Path, node: Any) -> type[np.generic]:
    if node.type not in _TYPES:
        raise _unusable(
            graph,
            f"{node.name} has the type {node.type}; supported are {' and '.join(_TYPES)}",
            "export the model again with float32 or float16 logits and cache",
        )
    return _TYPES[node.type]


def _refuse(graph: Path, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    if "input_ids" not in inputs or "logits" not in outputs or not any(map(_PAST.fullmatch, inputs)):
        raise _unusable(
            graph,
            "it lacks input_ids, logits or past_key_values.N.key|value",
            "export a text-generation graph with explicit KV-cache inputs (specdec-export does)",
        )
    shape = outputs["logits"].shape
    if len(shape) != 3 or shape[1] == 1:
        raise _unusable(
            graph,
            f"its logits have shape {shape}: only the last position, so drafted tokens cannot be checked",
            "export again with the logits of every position",
        )
    unknown = {name for name in inputs if not _PAST.fullmatch(name)} - _OPTIONAL - {"input_ids"}
    needed = unknown - {name for name in unknown if inputs[name].shape == []}
    if needed:
        raise _unusable(graph, f"unsupported required inputs: {', '.join(sorted(needed))}")
    for operator in _ROWS_INTERACT:
        if _mentions(graph, operator):
            raise _unusable(
                graph,
                f"{operator} scales activations over all rows, so a drafted token changes the logits of an "
                "earlier one and the output would differ from plain decoding",
                "use w8a8 (scales per row), int4 or int8 from specdec-export instead of quantize_dynamic",
            )


def _mentions(graph: Path, operator: str) -> bool:
    with graph.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(operator.encode()) >= 0
