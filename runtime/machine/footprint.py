"""How long a model's context can be and how much memory it takes, without loading the model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.graph_file import PAST, PRESENT, GraphFile, cache_axes, read_graph, with_half_cache
from specdec_onnx.models.system import available_memory
from specdec_onnx.models.text import gigabytes
from specdec_onnx.runtime.kernels import kernels
from specdec_onnx.runtime.model.decoder import CHUNK, SPARE_ROWS

DEFAULT_CONTEXT = 8192
"""Tokens of prompt and answer unless another limit is given, if there is no memory for more."""

_CACHE_SHARE = 5
"""The cache of a longer default context may take one part in so many of the free memory."""

_MEASURING_ROOM = 96
"""Cache rows that measuring requires; a model with fewer positions is measured after a shorter context."""

_ACTIVATIONS = 16
"""Floats that a token of a prefill pass takes for each unit of hidden and intermediate width; measured."""

_ARENA = 48 << 20
PROGRAM = 200 << 20
"""Python, ONNX Runtime and a tokenizer before any model is loaded: 150 MB for Qwen's; the rest comes with sessions."""

_LOGIT_ROWS = 34

_MOST_PREFIXES = 1 << 30
"""Bytes for the rows of other texts, unless another limit is given, and never more than a quarter of what is free."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of memory that a model takes: weights, full key-value cache, and working memory of passes.

    `left_in_file` are the bytes of the embedding table, which takes no memory, because only the rows in use are read.
    """

    weights: int
    cache: int
    working: int
    left_in_file: int = 0

    @property
    def total(self) -> int:
        """All three together."""
        return self.weights + self.cache + self.working


def predict(model: ModelFolder, capacity: int, *, half_cache: bool = True) -> Footprint:
    """What `model` takes with a cache of `capacity` rows, in float16 if that is possible here and allowed.

    Raises SpecdecError if its graph cannot be read.
    """
    hidden, wide = (model.number(key) or 0 for key in ("hidden_size", "intermediate_size"))
    graph = read_graph(model.graph)
    working = _ARENA + 4 * (CHUNK * _ACTIVATIONS * (hidden + wide) + _LOGIT_ROWS * _columns(model, graph))
    weights = max(0, model.weight_bytes - graph.tables)
    halved = half_cache and kernels().has_attention and with_half_cache(model.graph) is not None
    rows = _row_bytes(model, graph) * capacity // (2 if halved else 1)
    return Footprint(weights, rows, working, graph.tables)


def footprints(
    models: Mapping[str, ModelFolder], context: int | None = None, *, half_cache: bool = True
) -> dict[str, Footprint]:
    """What a target, with the program itself, and its draft take, by role, for a `context` as in `context_limit`."""
    tokens = context_limit(models["target"], context)
    needs = {
        role: predict(model, cache_rows(model, tokens), half_cache=half_cache)
        for role, model in models.items()
    }
    own = needs["target"]
    return needs | {"target": replace(own, working=own.working + PROGRAM)}


def cache_rows(model: ModelFolder, context: int) -> int:
    """Rows of the cache of `model` for a context of that many tokens."""
    return min(max(context + SPARE_ROWS, _MEASURING_ROOM), model.context_length)


def context_limit(model: ModelFolder, requested: int | None) -> int:
    """The most tokens of prompt and answer: as requested, if the model has the positions, and some for padding.

    By default it is the model's own limit, or what half of it, a quarter and so on leave where memory is scarce. Memory
    is only used as tokens come.
    """
    most = model.context_length - SPARE_ROWS
    if most < 2:
        raise SpecdecError(
            f"{model.name} has a context of {model.context_length} tokens",
            f"at least {SPARE_ROWS + 2} are needed, of which {SPARE_ROWS} are for padding",
            "correct context_length in specdec.json or max_position_embeddings in config.json, or export again",
        )
    if requested is not None and not 2 <= requested <= most:
        raise SpecdecError(
            f"a context of {requested} tokens is not possible", f"{model.name} supports 2 to {most}"
        )
    return requested or _affordable(model, most)


def _affordable(model: ModelFolder, most: int) -> int:
    """The longest default context."""
    free, row, context = available_memory(), predict(model, 1).cache, most
    while context > DEFAULT_CONTEXT:
        if free is not None and row * context * _CACHE_SHARE <= free:
            return context
        context //= 2
    return min(most, DEFAULT_CONTEXT)


def check_memory(needs: Mapping[str, Footprint], context: int) -> None:
    """Raise SpecdecError, with the numbers, if models with these footprints, by role, do not fit into memory."""
    available, total = available_memory(), sum(need.total for need in needs.values())
    if available is None or total <= available:
        return
    parts = "; ".join(
        f"{role}: weights {gigabytes(need.weights)}, cache of {context} tokens {gigabytes(need.cache)}, "
        f"working memory {gigabytes(need.working)}"
        for role, need in needs.items()
    )
    raise SpecdecError(
        f"not enough memory: {gigabytes(total)} needed, {gigabytes(available)} available",
        parts,
        "load with a smaller context, close other programs, or choose a smaller model",
    )


def prefix_memory(requested: int | None, caches: int) -> int:
    """The most bytes for rows of texts that are not in the caches, whose own bytes may not be in use yet."""
    if requested is None:
        free = available_memory()
        return _MOST_PREFIXES // 2 if free is None else max(0, min(_MOST_PREFIXES, (free - caches) // 4))
    if requested < 0:
        raise SpecdecError(
            f"prefix_memory is {requested}", "it is a number of bytes", "give 0 to keep nothing"
        )
    return requested


def _columns(model: ModelFolder, graph: GraphFile) -> int:
    """The width of the logits: the graph's, or config.json's if the graph leaves it open."""
    shapes = (graph.outputs[name].shape for name in ("trimmed_logits", "logits") if name in graph.outputs)
    width = next(shapes, (None,))[-1:]
    return width[0] if width and isinstance(width[0], int) else model.vocab_size


def _row_bytes(model: ModelFolder, graph: GraphFile) -> int:
    """Bytes that a token takes in the caches of all layers."""
    bits = 0
    for name, past in graph.caches.items():
        present = graph.outputs.get(name.replace(PAST, PRESENT))
        heads, width = cache_axes(name, [each.shape for each in (past, present) if each], model.config)
        bits += heads * width * past.bits
    return bits // 8
