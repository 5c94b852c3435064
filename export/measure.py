"""What an export costs and loses: time per forward pass, and distance to its unquantized source."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.architecture import read_architecture
from specdec_onnx.export.checkpoint.base import Checkpoint
from specdec_onnx.export.reference import FloatModel
from specdec_onnx.export.sample import TEXT
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.decoder import Decoder

REFERENCE = "fp32"
"""What quality is measured against: the source's own weights, in float arithmetic."""

WIDTHS = (1, 2, 4, 8, 16)
CONTEXT = 300
TOKENS = 768
_CHUNK = 64
_REPEATS, _LAPS = 7, 3

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Quality:
    """Distance of a graph's predictions to its source's over `tokens` positions of the built-in text.

    `kl_mean` is in nats; a trimmed head is compared on the ids it keeps, and `kept_probability` is the share of
    the source's belief that lies on them. Perplexities are those of the text, on the same ids.
    """

    tokens: int
    kl_mean: float
    top1_agreement: float
    kept_probability: float
    perplexity: float
    source_perplexity: float


def measure(model: ModelFolder, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Forward cost and quality, as report.json holds them; only the cost without a float source."""
    costs = {str(width): round(ms, 3) for width, ms in forward_cost_ms(model).items()}
    if checkpoint is None:
        return {"forward_cost_ms": costs}
    source = FloatModel(checkpoint, read_architecture(checkpoint.config, model.context_length))
    quality = asdict(compare(source.logits(text_tokens(model)), model))
    tokens = quality.pop("tokens")
    if model.trimmed_vocabulary is None:
        del quality["kept_probability"]
    return {"forward_cost_ms": costs, **quality, "quality_reference": REFERENCE, "quality_tokens": tokens}


def forward_cost_ms(model: ModelFolder, widths: Sequence[int] = WIDTHS) -> dict[int, float]:
    """Milliseconds of a pass over S tokens behind 300 others, the median of several, for each S."""
    widths = [width for width in widths if width < _limit(model)]
    context = min(CONTEXT, _limit(model) - max(widths))
    decoder = Decoder.open(model, capacity=context + max(widths))
    tokens = _tokens(model, context + max(widths))
    decoder.forward(tokens[:context], keep=1)
    return {width: 1000 * _time_pass(decoder, tokens[context : context + width], context) for width in widths}


def steady_cost_ms(models: Sequence[ModelFolder], widths: Sequence[int] = WIDTHS) -> list[dict[int, float]]:
    """Forward costs of models that are to be compared: they take turns, and the fastest turn of each width counts.

    Only one of them is in memory at a time; what else the machine does must last several turns to bend the result.
    """
    laps = [[forward_cost_ms(model, widths) for model in models] for _ in range(_LAPS)]
    return [
        {width: min(costs[width] for costs in turns) for width in turns[0]}
        for turns in zip(*laps, strict=True)
    ]


def text_tokens(model: ModelFolder, count: int = TOKENS) -> list[int]:
    """The first tokens of the built-in text, as many as the model can hold."""
    return model.tokenizer.encode(TEXT)[: min(count, _limit(model))]


def compare(reference: Rows, model: ModelFolder) -> Quality:
    """Quality of `model` against the logits [tokens, vocabulary] that its source gives for `text_tokens`."""
    kept, tokens = model.trimmed_vocabulary, text_tokens(model, len(reference))
    decoder = Decoder.open(model, capacity=len(tokens) + 1)
    divergence, agreed, share, surprise = 0.0, 0, 0.0, np.zeros((2, 0))
    for first in range(0, len(tokens), _CHUNK):
        theirs, ours = reference[first : first + _CHUNK], decoder.forward(tokens[first : first + _CHUNK])
        best = ours.argmax(axis=1) if kept is None else kept[ours.argmax(axis=1)]
        agreed += int((best == theirs.argmax(axis=1)).sum())
        part = theirs if kept is None else theirs[:, kept]
        share += float(np.exp(_log_sum(part) - _log_sum(theirs)).sum())
        divergence += float(_divergence(part, ours).sum())
        following = np.array(tokens[first + 1 : first + _CHUNK + 1])
        both = [_surprise(rows, following, kept) for rows in (ours, part)]
        surprise = np.concatenate([surprise, both], axis=1)
    count, perplexities = len(tokens), np.exp(surprise.mean(axis=1)) if surprise.size else np.ones(2)
    return Quality(count, divergence / count, agreed / count, share / count, *map(float, perplexities))


def _surprise(
    logits: Rows, following: NDArray[np.int64], kept: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """Nats of each next token, of those among the `kept` ids that the columns stand for."""
    rows, columns = np.arange(len(following)), following
    if kept is not None:
        rows = np.flatnonzero(np.isin(following, kept))
        columns = np.searchsorted(kept, following[rows])
    chosen = logits[rows].astype(np.float64)
    return _log_sum(logits[rows]) - chosen[np.arange(len(rows)), columns]


def _divergence(reference: Rows, other: Rows) -> NDArray[np.float64]:
    """KL(reference ‖ other) of each row, in nats."""
    left = reference.astype(np.float64) - _log_sum(reference)[:, None]
    right = other.astype(np.float64) - _log_sum(other)[:, None]
    return (np.exp(left) * (left - right)).sum(axis=1)


def _log_sum(logits: Rows) -> NDArray[np.float64]:
    peak = logits.max(axis=1, keepdims=True).astype(np.float64)
    return np.log(np.exp(logits - peak).sum(axis=1)) + peak[:, 0]


def _time_pass(decoder: Decoder, tokens: Sequence[int], start: int) -> float:
    seconds = []
    for _ in range(_REPEATS + 1):
        decoder.rollback(start)
        began = time.perf_counter()
        decoder.forward(tokens)
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])


def _tokens(model: ModelFolder, count: int) -> list[int]:
    tokens = model.tokenizer.encode(TEXT)
    return (tokens * (1 + count // len(tokens)))[:count]


def _limit(model: ModelFolder) -> int:
    """Most tokens a pass may reach; one is left for the row a lone token is padded with."""
    return model.context_length - 1
