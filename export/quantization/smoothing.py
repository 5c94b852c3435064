"""Smoothing: input channels with large activations are scaled down, and their weights up.

x·Wᵀ = (x/s)·(W·s)ᵀ for any s > 0 per input channel. SmoothQuant (Xiao et al., 2022) chooses s from the magnitudes of x
and W so that both round well; AWQ (Lin et al., 2023) does so for weights alone. Here several such rules are tried on
each layer, and the one with the least error of the layer's output on held-out rows is taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.quantization.linear import Calibrated

Array = NDArray[np.float32]

_HELD_OUT = 5
"""Every fifth row judges the rules, the others shape them."""

_ROWS, _COLUMNS = 200, 256

Rule = tuple[str, float, float]
_RULES: Sequence[Rule] = (
    ("mean square", 0.25, 0.0),
    ("mean square", 0.35, 0.65),
    ("mean square", 0.45, 0.55),
    ("mean square", 0.55, 0.45),
    ("peak", 0.4, 0.6),
    ("peak", 0.5, 0.5),
)
"""A magnitude, and its powers in the scale: of the activations, and of the weights."""

_RANGE = 1e4


@dataclass(frozen=True)
class Smoothing:
    """Scales of a layer's input channels [in], the importance left after scaling, and the error before and after.

    `power` is the mean square of the layer's exact output.
    """

    scales: Array
    importance: Array
    rule: str
    before: float
    after: float
    power: float


def best_smoothing(
    format: Calibrated,
    rows: Array,
    weight: Array,
    group: tuple[int, int] = (1, 1),
    rules: Sequence[Rule] = _RULES,
) -> Smoothing:
    """The best smoothing of `weight` [out, in] for activations like `rows` [rows, in].

    `group` = (heads that share their scales, channels of a head), for the output of grouped-query attention.
    """
    some = weight[:: max(1, len(weight) // _COLUMNS)]
    judges = rows[::_HELD_OUT][:: max(1, len(rows) // _HELD_OUT // _ROWS)]
    shaping = np.delete(rows, np.s_[::_HELD_OUT], axis=0) if len(rows) >= 2 * _HELD_OUT else rows
    importance, exact = np.mean(shaping**2, axis=0), judges @ some.T
    best, before, power = None, 0.0, float(np.mean(exact**2))
    for rule, scales in _candidates(shaping, some, group, rules):
        left = importance / scales**2
        error = _error(format.product(judges / scales, some * scales, left), exact)
        if best is None:
            before = error
        if best is None or error < best.after:
            best = Smoothing(scales, left, rule, before, error, power)
    assert best is not None
    return best


def _candidates(
    rows: Array, weight: Array, group: tuple[int, int], rules: Sequence[Rule]
) -> Iterator[tuple[str, Array]]:
    yield "none", np.ones(rows.shape[1], np.float32)
    magnitudes = {
        measure: [_share(_magnitude(measure, values), group) for values in (rows, weight)]
        for measure in {measure for measure, _, _ in rules}
    }
    for measure, of_rows, of_weight in rules:
        x, w = magnitudes[measure]
        yield f"{measure} {of_rows}", _bounded(x**of_rows / w**of_weight)


def _magnitude(measure: str, values: Array) -> Array:
    """One of each channel, always above zero."""
    magnitude = np.abs(values).max(axis=0) if measure == "peak" else np.sqrt(np.mean(values**2, axis=0))
    return np.maximum(magnitude, max(float(magnitude.max()) * 1e-5, 1e-20))


def _share(channels: Array, group: tuple[int, int]) -> Array:
    """The largest value among heads that share their scales, for each of them."""
    heads, size = group
    apart = channels.reshape(-1, heads, size)
    return np.broadcast_to(apart.max(axis=1, keepdims=True), apart.shape).reshape(-1)


def _bounded(scales: Array) -> Array:
    """Centred on one, and bounded so that the weights scaled in return stay well within float32's range."""
    centred = scales / np.exp(np.mean(np.log(scales)))
    return np.clip(centred, 1 / _RANGE, _RANGE).astype(np.float32)


def _error(values: Array, exact: Array) -> float:
    """Squared error relative to the exact values' squares."""
    return float(np.sum((values - exact) ** 2) / max(float(np.sum(exact**2)), 1e-30))
