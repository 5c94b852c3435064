"""From a row of logits to a token: one distribution for drafting, verifying and resampling.

Order of the steps: logits processors (for the target), repetition penalty, frequency and presence penalty, logit bias,
grammar, temperature, top-k, top-p (over what top-k left), min-p (relative to the likeliest token), renormalisation.
Ties at a cut stay in.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.sampling.parameters import Parameters

if TYPE_CHECKING:
    from specdec_onnx.runtime.sampling.constraint import Guide

Scores = NDArray[np.float32]
Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

_FOLD = 64
"""Scores per group when a lower bound for the k-th largest is sought: one cheap pass leaves n/64 group maxima."""


def top_k(scores: Scores, k: int) -> Ids:
    """Ascending indices of the `k` largest of `scores` [n], and of all that equal the smallest of them.

    The k-th largest group maximum is a lower bound for the k-th largest score, so only the few scores above it
    are partitioned.
    """
    folded = scores[: scores.size // _FOLD * _FOLD].reshape(_FOLD, -1).max(axis=0, initial=-np.inf)
    bound = _kth_largest(folded, k) if k <= folded.size else np.float32(-np.inf)
    near = np.flatnonzero(scores >= bound)
    return near[scores[near] >= _kth_largest(scores[near], k)]


def nucleus(weights: Scores, mass: float) -> Ids:
    """Ascending indices of the largest of `weights` [n] that together reach the share `mass` of their sum, and ties.

    All weights under (1 - mass) * sum / n add up to less than the share that is left out, so only those above are
    sorted.
    """
    total = float(weights.sum())
    near = np.flatnonzero(weights >= (1 - mass) * total / weights.size)
    falling = np.sort(weights[near])[::-1]
    place = int(falling.cumsum(dtype=np.float64).searchsorted(mass * total))
    return near[weights[near] >= falling[min(place, near.size - 1)]]


def _kth_largest(scores: Scores, k: int) -> np.float32:
    return np.partition(scores, scores.size - k)[scores.size - k]


_ROOM = 256


class History:
    """Counts of the tokens in prompt and output; the last pushed tokens can be popped again.

    A drafted token is pushed before the row after it is read, and popped after verification, so that each row is judged
    with exactly the tokens before it. Push and pop are O(1).
    """

    guide: "Guide | None" = None
    """The grammar that the output follows, if any."""

    def __init__(self, prompt: Iterable[int] = ()) -> None:
        self._slots = {token: slot for slot, token in enumerate(dict.fromkeys(prompt))}
        self._from_prompt = len(self._slots)
        self._ids = np.zeros(self._from_prompt + _ROOM, np.int64)
        self._ids[: self._from_prompt] = list(self._slots)
        self._produced = np.zeros_like(self._ids)
        self.output: list[int] = []
        """The tokens pushed so far; do not modify."""

    @property
    def seen(self) -> Ids:
        """The distinct token ids [n] of prompt and output, in no particular order."""
        return self._ids[: len(self._slots)]

    @property
    def produced(self) -> Ids:
        """How often each id of `seen` occurs in the output [n]; 0 for those only in the prompt."""
        return self._produced[: len(self._slots)]

    def push(self, token: int) -> None:
        """Append one output token."""
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == self._ids.size:
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._produced = np.concatenate([self._produced, np.zeros_like(self._produced)])
        self._ids[slot] = token
        self._produced[slot] += 1
        self.output.append(token)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append several output tokens."""
        for token in tokens:
            self.push(token)

    def pop(self, count: int = 1) -> None:
        """Remove the last `count` pushed tokens."""
        for _ in range(count):
            token = self.output.pop()
            slot = self._slots[token]
            self._produced[slot] -= 1
            if slot >= self._from_prompt and not self._produced[slot]:
                del self._slots[token]  # first seen last, so its slot is the last one


@dataclass(frozen=True, slots=True, eq=False)
class Categorical:
    """Probabilities [n], float64 with sum 1, of the ascending token ids [n]; without ids, entry i is token i's."""

    probs: Floats
    ids: Ids | None = None

    @classmethod
    def one_hot(cls, token: int) -> "Categorical":
        """All mass on one token: what a deterministic proposer draws from."""
        return cls(np.ones(1), np.array([token], np.int64))

    def p(self, token: int) -> float:
        """The probability of one token id; 0 for an id outside the support."""
        index = token if self.ids is None else int(self.ids.searchsorted(token))
        if not 0 <= index < self.probs.size or (self.ids is not None and self.ids[index] != token):
            return 0.0
        return float(self.probs[index])

    def at(self, ids: Ids) -> Floats:
        """The probabilities [n] of many token ids [n]; 0 outside the support."""
        places, inside = _places(ids, self.ids, self.probs.size)
        return np.where(inside, self.probs[places], 0.0)

    def excess(self, other: "Categorical", scale: float = 1.0) -> Floats:
        """max(scale * p - q, 0) over this distribution's own support [n], q being `other`; not normalised."""
        weights = self.probs * scale
        if self.ids is None and other.ids is None:
            shared = min(weights.size, other.probs.size)
            weights[:shared] -= other.probs[:shared]
        elif self.ids is None and other.ids is not None:
            inside = other.ids < weights.size
            weights[other.ids[inside]] -= other.probs[inside]
        else:
            weights -= other.at(self.token_ids)
        return np.maximum(weights, 0.0, out=weights)

    def reweighted(self, weights: Floats) -> "Categorical":
        """The distribution over the same support with these weights [n]; unchanged when they are all 0.

        All 0 means that p and q differ by rounding only, so p itself is the residual.
        """
        total = float(weights.sum())
        return Categorical(weights / total, self.ids) if total > 0 else self

    def residual(self, other: "Categorical", scale: float = 1.0) -> "Categorical":
        """max(scale * p - q, 0), normalised: what to draw from after a token drafted from q was rejected."""
        return self.reweighted(self.excess(other, scale))

    @property
    def token_ids(self) -> Ids:
        """The token ids [n] that the probabilities belong to, ascending."""
        return np.arange(self.probs.size) if self.ids is None else self.ids


def _places(ids: Ids, ascending: Ids | None, size: int) -> tuple[Ids, NDArray[np.bool_]]:
    """Where `ids` are in the first `size` of `ascending` (None: 0, 1, 2, …), and which of them are; 0 for the others."""
    places = ids if ascending is None else ascending.searchsorted(ids)
    inside = places < size
    places = np.where(inside, places, 0)
    if ascending is not None:
        inside &= ascending[places] == ids
    return places, inside


class Chance:
    """The randomness of one answer: numpy's PCG64 with a seed (None: a fresh one)."""

    def __init__(self, seed: int | None = None) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def flip(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self._generator.random() < probability)

    def draw(self, categorical: Categorical) -> int:
        """A token id drawn from the distribution."""
        cumulative = categorical.probs.cumsum()
        place = int(cumulative.searchsorted(self._generator.random() * cumulative[-1], side="right"))
        return place if categorical.ids is None else int(categorical.ids[place])


_LEAST_TEMPERATURE = 1e-30
"""Smaller ones would be 0 in float32; the likeliest token has all the mass long before that."""


_BANNED = -1e30
"""A bias below this one bans a token, like -inf; float32 could not hold some of these."""


class Logprob(NamedTuple):
    """How likely the target found a token, as natural logarithms; `top` has the likeliest ids and theirs, in order.

    It is the model's own distribution, before processors, penalties, biases, the grammar and the sampling settings: a
    token that these forced may be unlikely, and a banned one may be in `top`.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def logprob(row: Scores, token: int, count: int) -> Logprob:
    """How likely a row of logits [V] makes `token`, and the `count` likeliest tokens; among equals the lower id first."""
    scores = row.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    ids = top_k(row, min(count, row.size)) if count else np.empty(0, np.int64)
    ids = ids[np.argsort(-scores[ids], kind="stable")][:count]
    return Logprob(token, float(scores[token]), tuple((int(each), float(scores[each])) for each in ids))


class NothingLeftError(SpecdecError):
    """The biases, a logits processor and the grammar ban every token."""


Processor = Callable[[Sequence[int], Scores], Scores]
"""processor(tokens, logits): other logits [V] for the token that follows `tokens` (prompt and answer so far).

The rule that keeps speculation exact: the result depends on the two arguments only. It is called for every position
that is verified, also for tokens that are then not kept, and for the same position more than once.
"""


class Processing:
    """The logits processors of an answer to `prompt`, in their order."""

    def __init__(self, prompt: Sequence[int], processors: Sequence[Processor]) -> None:
        self._prompt, self._processors = tuple(prompt), tuple(processors)
        for processor in self._processors:
            if not callable(processor):
                raise SpecdecError(f"the logits processor {processor!r:.60} cannot be called")

    def __call__(self, row: Scores, output: Sequence[int]) -> Scores:
        """The processed logits [V]; the row itself stays as it is."""
        scores = np.array(row, np.float32)
        for processor in self._processors:
            result = np.asarray(processor([*self._prompt, *output], scores))
            if result.shape != row.shape or result.dtype.kind != "f":
                raise SpecdecError(
                    f"a logits processor returned {result.dtype} {list(result.shape)}",
                    f"it must return floats {list(row.shape)}, one for each token id",
                )
            scores = result.astype(np.float32, copy=False)
        if np.isnan(scores).any() or np.isposinf(scores).any():
            raise SpecdecError("a logits processor returned what is no number", "only -inf may be infinite")
        return scores


class Sampler:
    """Turns logits into distributions over token ids.

    `vocab_size` is the number of ids that have a token; later columns are padding and never read. For logits of a
    trimmed vocabulary, `token_ids` [T] has each column's token id, ascending.
    """

    def __init__(
        self,
        parameters: Parameters,
        vocab_size: int,
        token_ids: Ids | None = None,
        processing: Processing | None = None,
    ) -> None:
        self.parameters, self.vocab_size, self._processing = parameters, vocab_size, processing
        self._token_ids = None if token_ids is None else token_ids[: int(token_ids.searchsorted(vocab_size))]
        self._bias_ids = np.fromiter(parameters.logit_bias.keys(), np.int64)
        biases = (bias if bias >= _BANNED else -np.inf for bias in parameters.logit_bias.values())
        self._bias = np.fromiter(biases, np.float32)
        width = vocab_size if self._token_ids is None else self._token_ids.size
        self._adjusted, self._weights = np.empty(width, np.float32), np.empty(width, np.float32)
        if self._bias_ids.size and self._bias_ids.max() >= vocab_size:
            raise SpecdecError(
                f"logit_bias names token {self._bias_ids.max()}", f"the model has {vocab_size} tokens"
            )

    @property
    def plain(self) -> bool:
        """Whether scores are the model's logits as they are, unless a grammar excludes some."""
        return not (self.parameters.penalised or self._bias_ids.size or self._processing)

    def distribution(self, logits: Scores, history: History) -> Categorical:
        """What the next token is drawn from, given a row of logits [V or T] and the tokens before it."""
        setting = self.parameters
        if setting.greedy:
            return Categorical.one_hot(self.argmax(logits, history))
        scores = self._scores(logits, history)
        columns = top_k(scores, setting.top_k) if 0 < setting.top_k < scores.size else None
        self._check(scores.max(), logits, history)
        weights = self._weigh(scores if columns is None else scores[columns], setting.temperature)
        if setting.top_p < 1:
            weights, columns = _keep(nucleus(weights, setting.top_p), weights, columns)
        if setting.min_p > 0:
            weights, columns = _keep(np.flatnonzero(weights >= setting.min_p), weights, columns)
        probs = weights.astype(np.float64)
        return Categorical(np.divide(probs, probs.sum(), out=probs), self._ids(columns))

    def argmax(self, logits: Scores, history: History) -> int:
        """The token with the highest score; among equals the one with the lowest id."""
        scores = self._scores(logits, history)
        column = int(scores.argmax())
        self._check(scores[column], logits, history)
        return column if self._token_ids is None else int(self._token_ids[column])

    def best(self, logits: Scores, history: History) -> tuple[int, float]:
        """The token with the highest score and its probability at temperature 1: a greedy draft and its confidence."""
        scores = self._scores(logits, history)
        column, weights = int(scores.argmax()), self._weights[: scores.size]
        self._check(scores[column], logits, history)
        np.exp(np.subtract(scores, scores[column], out=weights, dtype=np.float32), out=weights)
        probability = 1 / float(weights.sum())
        return column if self._token_ids is None else int(self._token_ids[column]), probability

    def _weigh(self, scores: Scores, temperature: float) -> Scores:
        """exp((score - peak) / temperature) [n], 1 for the likeliest token; valid until the next call."""
        weights, peak = self._weights[: scores.size], scores.max()
        with np.errstate(over="ignore"):
            np.subtract(scores, peak, out=weights, dtype=np.float32)
            weights /= np.float32(max(temperature, _LEAST_TEMPERATURE))
        return np.exp(weights, out=weights)

    def _check(self, highest: np.floating[Any], logits: Scores, history: History) -> None:
        """Raise SpecdecError if the highest score is no number, for its true reason."""
        if np.isfinite(highest):
            return
        if np.isfinite(logits[: self._adjusted.size].max()):
            given = self._bias_ids.size, self._processing, history.guide
            names = "logit_bias", "a logits processor", "the grammar"
            causes = [name for name, each in zip(names, given, strict=True) if each]
            if causes:
                why = f"{' and '.join(causes)} {'bans' if len(causes) == 1 else 'together ban'} every one"
                raise NothingLeftError("no token is left to choose", why, "leave out some of what bans them")
        raise SpecdecError(
            "the model's output is not a number", f"the highest score is {highest}", "export the model again"
        )

    def _ids(self, columns: Ids | None) -> Ids | None:
        if self._token_ids is None:
            return columns
        return self._token_ids if columns is None else self._token_ids[columns]

    def _scores(self, logits: Scores, history: History) -> Scores:
        """The logits with all that changes them: a view when nothing does, else valid until the next call."""
        row = logits[: self._adjusted.size]
        if self.plain and history.guide is None:
            return row
        scores = self._adjusted[: row.size]
        np.copyto(scores, self._processing(row, history.output) if self._processing else row)
        if self.parameters.penalised:
            self._penalise(scores, history)
        columns, inside = self._columns(self._bias_ids, scores.size)
        scores[columns] += self._bias[inside]
        if history.guide is not None:
            allowed = history.guide.allowed()
            allowed = allowed if self._token_ids is None else allowed[self._token_ids]
            np.copyto(scores, -np.inf, where=~allowed)
        return scores

    def _penalise(self, scores: Scores, history: History) -> None:
        setting = self.parameters
        columns, inside = self._columns(history.seen, scores.size)
        produced, values = history.produced[inside], scores[columns]
        factor = np.float32(setting.repetition_penalty)
        values = np.where(values > 0, values / factor, values * factor)
        present = np.float32(setting.presence_penalty) * (produced > 0)
        values -= np.float32(setting.frequency_penalty) * produced + present
        scores[columns] = values

    def _columns(self, ids: Ids, width: int) -> tuple[Ids, NDArray[np.bool_]]:
        """The columns of the given ids, as far as they have one, and which of them do."""
        places, inside = _places(ids, self._token_ids, width)
        return places[inside], inside


def _keep(places: Ids, weights: Scores, columns: Ids | None) -> tuple[Scores, Ids]:
    """The weights at `places` and their columns (all of them when there are no `columns` yet)."""
    return weights[places], places if columns is None else columns[places]
