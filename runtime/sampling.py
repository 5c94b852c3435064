"""From a row of logits to a token: one distribution for drafting, verifying and resampling.

Order of the steps: repetition penalty, frequency and presence penalty, logit bias, temperature, top-k, top-p (over
what top-k left), min-p (relative to the likeliest token), renormalisation. Ties at a cut stay in.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.categorical import Categorical, Chance
from specdec_onnx.runtime.history import History
from specdec_onnx.runtime.parameters import Parameters
from specdec_onnx.runtime.truncation import nucleus, top_k

__all__ = ["Chance", "Parameters", "Sampler"]

_LEAST_TEMPERATURE = 1e-30
"""Smaller ones would be 0 in float32; the likeliest token has all the mass long before."""


class Sampler:
    """Turns logits into distributions over token ids.

    `vocab_size` is the number of ids that stand for a token: columns from there on (padding) are never looked at.
    For logits of a trimmed vocabulary, `token_ids` [T] names each column's token id, ascending.
    """

    def __init__(
        self, parameters: Parameters, vocab_size: int, token_ids: NDArray[np.int64] | None = None
    ) -> None:
        self.parameters, self.vocab_size = parameters, vocab_size
        self._token_ids = None if token_ids is None else token_ids[: int(token_ids.searchsorted(vocab_size))]
        self._bias_ids = np.fromiter(parameters.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(parameters.logit_bias.values(), np.float32)
        width = vocab_size if self._token_ids is None else self._token_ids.size
        self._adjusted, self._weights = np.empty(width, np.float32), np.empty(width, np.float32)
        if self._bias_ids.size and self._bias_ids.max() >= vocab_size:
            raise SpecdecError(
                f"logit_bias names token {self._bias_ids.max()}", f"the model has {vocab_size} tokens"
            )

    @property
    def plain(self) -> bool:
        """Whether scores are the model's logits as they are: no penalty, no bias."""
        return not (self.parameters.penalised or self._bias_ids.size)

    def distribution(self, logits: NDArray[np.float32], history: History) -> Categorical:
        """What the next token is drawn from, given a row of logits [V or T] and the tokens before it."""
        setting = self.parameters
        if setting.greedy:
            return Categorical.one_hot(self.argmax(logits, history))
        scores = self._scores(logits, history)
        columns = top_k(scores, setting.top_k) if 0 < setting.top_k < scores.size else None
        weights = self._weigh(scores if columns is None else scores[columns], setting.temperature)
        if setting.top_p < 1:
            weights, columns = _keep(nucleus(weights, setting.top_p), weights, columns)
        if setting.min_p > 0:
            weights, columns = _keep(np.flatnonzero(weights >= setting.min_p), weights, columns)
        probs = weights.astype(np.float64)
        return Categorical(np.divide(probs, probs.sum(), out=probs), self._ids(columns))

    def argmax(self, logits: NDArray[np.float32], history: History) -> int:
        """The token with the highest score; among equals the one with the lowest id."""
        scores = self._scores(logits, history)
        column = int(scores.argmax())
        _finite(scores[column])
        return column if self._token_ids is None else int(self._token_ids[column])

    def best(self, logits: NDArray[np.float32], history: History) -> tuple[int, float]:
        """The token with the highest score and its probability at temperature 1: a greedy draft and its confidence."""
        scores = self._scores(logits, history)
        column, weights = int(scores.argmax()), self._weights[: scores.size]
        _finite(scores[column])
        np.exp(np.subtract(scores, scores[column], out=weights, dtype=np.float32), out=weights)
        probability = 1 / float(weights.sum())
        return column if self._token_ids is None else int(self._token_ids[column]), probability

    def _weigh(self, scores: NDArray[np.float32], temperature: float) -> NDArray[np.float32]:
        """exp((score - peak) / temperature) [n], 1 for the likeliest token; valid until the next call."""
        weights, peak = self._weights[: scores.size], scores.max()
        _finite(peak)
        with np.errstate(over="ignore"):
            np.subtract(scores, peak, out=weights, dtype=np.float32)
            weights /= np.float32(max(temperature, _LEAST_TEMPERATURE))
        return np.exp(weights, out=weights)

    def _ids(self, columns: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        if self._token_ids is None:
            return columns
        return self._token_ids if columns is None else self._token_ids[columns]

    def _scores(self, logits: NDArray[np.float32], history: History) -> NDArray[np.float32]:
        """The logits with penalties and bias: a view when there are none, else valid until the next call."""
        row = logits[: self._adjusted.size]
        if self.plain:
            return row
        scores = self._adjusted[: row.size]
        np.copyto(scores, row)
        if self.parameters.penalised:
            self._penalise(scores, history)
        columns, inside = self._columns(self._bias_ids, scores.size)
        scores[columns] += self._bias[inside]
        return scores

    def _penalise(self, scores: NDArray[np.float32], history: History) -> None:
        setting = self.parameters
        columns, inside = self._columns(history.seen, scores.size)
        produced, values = history.produced[inside], scores[columns]
        factor = np.float32(setting.repetition_penalty)
        values = np.where(values > 0, values / factor, values * factor)
        values -= np.float32(setting.frequency_penalty) * produced + np.float32(setting.presence_penalty) * (
            produced > 0
        )
        scores[columns] = values

    def _columns(self, ids: NDArray[np.int64], width: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The columns of those of the given ids that have one, and which of them do."""
        places = ids if self._token_ids is None else self._token_ids.searchsorted(ids)
        inside = places < width
        if self._token_ids is not None:
            inside &= self._token_ids[np.where(inside, places, 0)] == ids
        return places[inside], inside


def _keep(
    places: NDArray[np.int64], weights: NDArray[np.float32], columns: NDArray[np.int64] | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The weights at `places` and their columns (all of them when there are no `columns` yet)."""
    return weights[places], places if columns is None else columns[places]


def _finite(score: np.floating[Any]) -> None:
    if not np.isfinite(score):
        raise SpecdecError(
            "the model's output is not a number", f"the highest score is {score}", "export the model again"
        )
