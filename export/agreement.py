"""How often a draft without some of its layers would say what the target says, for many such drafts at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.architecture import read_architecture
from specdec_onnx.export.checkpoint.base import Checkpoint
from specdec_onnx.export.reference import FloatModel
from specdec_onnx.export.weights import Weights

Array = NDArray[np.float32]
Dropped = frozenset[int]


@dataclass(frozen=True)
class Answers:
    """Texts [texts, length] whose positions in `own` [texts, length] the target wrote, greedily."""

    tokens: NDArray[np.int64]
    own: NDArray[np.bool_]

    @classmethod
    def of(cls, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> "Answers":
        """From prompts and the target's answers to them, padded at the end, where no earlier token looks."""
        length = max(len(prompt) + len(answer) for prompt, answer in texts)
        tokens = np.zeros((len(texts), length), np.int64)
        own = np.zeros((len(texts), length), bool)
        for row, (prompt, answer) in enumerate(texts):
            end = len(prompt) + len(answer)
            tokens[row, :end] = [*prompt, *answer]
            own[row, len(prompt) : end] = True
        return cls(tokens, own)


def agreements(
    draft: Checkpoint, answers: Answers, candidates: Iterable[Dropped], kept_ids: NDArray[np.int64] | None
) -> dict[Dropped, float]:
    """By set of dropped layers, the share of the target's tokens that the float draft finds likeliest, too.

    Of a trimmed head only `kept_ids` are scored. Layers are read once each, and drafts that drop the same layers so
    far share their results: memory holds one layer and the candidates' activations.
    """
    look, wanted = read_architecture(draft.config), list(dict.fromkeys(candidates))
    model, weights = FloatModel(draft, look), Weights(draft, look)
    x = model.embed(answers.tokens)
    states = {Dropped(): (x, np.zeros_like(x))}
    for index in range(look.layers):
        so_far = {Dropped(layer for layer in dropped if layer <= index) for dropped in wanted}
        fresh = {known | {index}: state for known, state in states.items() if known | {index} in so_far}
        running = [known for known in states if known in so_far]
        layer = weights.layer(index) if running else None
        for known in running:
            assert layer is not None
            x, residual, _ = model.layer(layer, *states[known])
            fresh[known] = x, residual
        states = fresh
    return _scored(model, weights, answers, states, kept_ids)


def _scored(
    model: FloatModel,
    weights: Weights,
    answers: Answers,
    states: dict[Dropped, tuple[Array, Array]],
    kept_ids: NDArray[np.int64] | None,
) -> dict[Dropped, float]:
    head, found = weights.head(), {}
    if kept_ids is not None:
        head = head[kept_ids]
    before = np.roll(answers.own, -1, axis=1)  # each token is judged where its predecessor stands
    wanted = answers.tokens[answers.own]
    for dropped, (x, residual) in states.items():
        best = (model.normed(x + residual)[before] @ head.T).argmax(axis=1)
        greedy = best if kept_ids is None else kept_ids[best]
        found[dropped] = float(np.mean(greedy == wanted))
    return found
