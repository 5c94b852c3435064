"""Smoothing: input channels that are loud in a layer's activations are made quiet, its weights there larger.

x·Wᵀ = (x/s)·(W·s)ᵀ for any s > 0 per input channel. SmoothQuant (Xiao et al., 2022) chooses s from magnitudes of x and
W so that both round well; AWQ (Lin et al., 2023) does so for weights alone. Here several such rules are tried on each
layer, and the one with the least error in what the layer gives, on rows that did not shape it, is taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.quantization.linear import Calibrated

Array = NDArray[np.float32]

_HELD_OUT = 5
"""Every fifth row judges, the others shape."""

_ROWS, _COLUMNS = 200, 256
Rule = tuple[str, float, float]
RULES: Sequence[Rule] = (
    ("mean square", 0.25, 0.0),
    ("mean square", 0.35, 0.65),
    ("mean square", 0.45, 0.55),
    ("mean square", 0.55, 0.45),
    ("peak", 0.4, 0.6),
    ("peak", 0.5, 0.5),
)
"""Which magnitude, and the powers of the activations' and the weights' in the scale."""

_RANGE = 1e4


@dataclass(frozen=True)
class Choice:
    """Scales of a layer's input channels [in], their importance behind them, and the error without and with."""

    scales: Array
    importance: Array
    rule: str
    before: float
    after: float


def choose(
    format: Calibrated,
    rows: Array,
    weight: Array,
    group: tuple[int, int] = (1, 1),
    rules: Sequence[Rule] = RULES,
) -> Choice:
    """The best smoothing of `weight` [out, in] for inputs like `rows` [rows, in].

    `group` = (heads that share their scales, channels of a head), for the output of grouped-query attention.
    """
    some = weight[:: max(1, len(weight) // _COLUMNS)]
    judges = rows[::_HELD_OUT][:: max(1, len(rows) // _HELD_OUT // _ROWS)]
    shaping = np.delete(rows, np.s_[::_HELD_OUT], axis=0) if len(rows) >= 2 * _HELD_OUT else rows
    importance, exact = np.mean(shaping**2, axis=0), judges @ some.T
    best: Choice | None = None
    before = 0.0
    for rule, scales in _candidates(shaping, some, group, rules):
        left = importance / scales**2
        error = _error(format.product(judges / scales, some * scales, left), exact)
        before = error if best is None else before
        if best is None or error < best.after:
            best = Choice(scales, left, rule, before, error)
    assert best is not None
    return best


def _candidates(
    rows: Array, weight: Array, group: tuple[int, int], rules: Sequence[Rule]
) -> Iterator[tuple[str, Array]]:
    yield "none", np.ones(rows.shape[1], np.float32)
    for measure, of_rows, of_weight in rules:
        x, w = (_share(_magnitude(measure, values), group) for values in (rows, weight))
        yield f"{measure} {of_rows}", _bounded(x**of_rows / w**of_weight)


def _magnitude(measure: str, values: Array) -> Array:
    """Of each channel, a little above zero."""
    found = np.abs(values).max(axis=0) if measure == "peak" else np.sqrt(np.mean(values**2, axis=0))
    return np.maximum(found, max(float(found.max()) * 1e-5, 1e-20))


def _share(channels: Array, group: tuple[int, int]) -> Array:
    """The largest value among heads that share, given to each of them."""
    heads, size = group
    apart = channels.reshape(-1, heads, size)
    return np.broadcast_to(apart.max(axis=1, keepdims=True), apart.shape).reshape(-1)


def _bounded(scales: Array) -> Array:
    """Around one, and never so far that a neighbour's weights leave float32's comfortable range."""
    centred = scales / np.exp(np.mean(np.log(scales)))
    return np.clip(centred, 1 / _RANGE, _RANGE).astype(np.float32)


def _error(found: Array, exact: Array) -> float:
    """Squared error relative to the exact values' squares."""
    return float(np.sum((found - exact) ** 2) / max(float(np.sum(exact**2)), 1e-30))
