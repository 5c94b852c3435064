"""What an export costs and loses: time per forward pass, and distance to a finer graph of the same source."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.assemble import ModelWriter, Order
from specdec_onnx.export.checkpoint.base import Checkpoint
from specdec_onnx.export.linear import parse_format
from specdec_onnx.export.sample import TEXT
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.runtime.decoder import Decoder

REFERENCE = "int8"
"""The format that quality is measured against: 8-bit weight-only is the closest to the source."""

WIDTHS = (1, 2, 4, 8, 16)
CONTEXT = 300
TOKENS = 768
_CHUNK = 64
_REPEATS = 7

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Quality:
    """Distance of a graph's predictions to a reference's over `tokens` positions of the built-in text.

    `kl_mean` is in nats; a trimmed head is compared on the ids it keeps, and `kept_probability` is the share of the
    reference's belief that lies on them.
    """

    tokens: int
    kl_mean: float
    top1_agreement: float
    kept_probability: float


def measure(model: ModelFolder, checkpoint: Checkpoint) -> dict[str, Any]:
    """Forward cost and quality, as report.json holds them; the source is exported once more to compare."""
    costs = {str(width): round(ms, 3) for width, ms in forward_cost_ms(model).items()}
    quality = asdict(compare(reference_logits(checkpoint), model))
    tokens = quality.pop("tokens")
    if model.trimmed_vocabulary is None:
        del quality["kept_probability"]
    return {"forward_cost_ms": costs, **quality, "quality_reference": REFERENCE, "quality_tokens": tokens}


def reference_logits(checkpoint: Checkpoint) -> list[Rows]:
    """The blocks of `text_logits` from the checkpoint's REFERENCE graph, made for this and removed again."""
    with TemporaryDirectory(prefix="specdec-reference-") as scratch:
        writer = ModelWriter(checkpoint, Path(scratch), Order(parse_format(REFERENCE)))
        writer.describe()
        writer.build(lambda *_: None)
        return [rows.copy() for rows in text_logits(open_model(Path(scratch)))]


def forward_cost_ms(model: ModelFolder, widths: Sequence[int] = WIDTHS) -> dict[int, float]:
    """Milliseconds of a pass over S tokens behind 300 others, the median of several, for each S."""
    widths = [width for width in widths if width < _limit(model)]
    context = min(CONTEXT, _limit(model) - max(widths))
    decoder = Decoder.open(model, capacity=context + max(widths))
    tokens = _tokens(model, context + max(widths))
    decoder.forward(tokens[:context], keep=1)
    return {width: 1000 * _time_pass(decoder, tokens[context : context + width], context) for width in widths}


def text_logits(model: ModelFolder, count: int = TOKENS) -> Iterator[Rows]:
    """Logits of the built-in text's first tokens, a few rows at a time; the next block overwrites them."""
    tokens = model.tokenizer.encode(TEXT)[: min(count, _limit(model))]
    decoder = Decoder.open(model, capacity=len(tokens) + 1)
    for first in range(0, len(tokens), _CHUNK):
        yield decoder.forward(tokens[first : first + _CHUNK])


def compare(reference: Sequence[Rows], model: ModelFolder, count: int = TOKENS) -> Quality:
    """Quality of `model` against the blocks of `text_logits` that another graph of the same source gave."""
    kept = model.trimmed_vocabulary
    divergence, agreed, share, rows = 0.0, 0, 0.0, 0
    for ours, theirs in zip(text_logits(model, count), reference, strict=True):
        best = ours.argmax(axis=1) if kept is None else kept[ours.argmax(axis=1)]
        agreed += int((best == theirs.argmax(axis=1)).sum())
        part = theirs if kept is None else theirs[:, kept]
        share += float(np.exp(_log_sum(part) - _log_sum(theirs)).sum())
        divergence += float(_divergence(part, ours).sum())
        rows += len(ours)
    return Quality(rows, divergence / rows, agreed / rows, share / rows)


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
