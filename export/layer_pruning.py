"""A draft with fewer layers: which ones, and whether that pays, is measured against what the target says."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint import Checkpoint
from specdec_onnx.export.checkpoint.weights import Weights
from specdec_onnx.export.graph.architecture import read_architecture
from specdec_onnx.export.graph.model_writer import Depth, ModelWriter, Order
from specdec_onnx.export.graph.transformer import Step
from specdec_onnx.export.quality.measure import FloatModel, steady_cost_ms
from specdec_onnx.export.quality.trial import answers
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.models.progress import silent
from specdec_onnx.runtime.machine.costs import Curve, predicted_speedup

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


class TokenCost:
    """Milliseconds of a single-token pass by the number of layers, a straight line through two measured slices."""

    def __init__(self, checkpoint: Checkpoint, order: Order, work: Path) -> None:
        """Measure; the slices are written below `work`, which exists, and removed again."""
        layers = int(checkpoint.config["num_hidden_layers"])
        self._depths = sorted({max(1, layers // 4), max(1, layers // 2), min(2, layers)})[-2:]
        plain = replace(order, smooth=False, trim_by="lowest")
        with TemporaryDirectory(dir=work, prefix=".slices-") as folder:
            models = [_written(checkpoint, plain, depth, Path(folder) / str(depth)) for depth in self._depths]
            self._costs = [costs[1] for costs in steady_cost_ms(models, (1,))]

    def __call__(self, layers: int) -> float:
        """Milliseconds with that many layers; never less for more of them."""
        if len(self._depths) == 1:
            return self._costs[0]
        (few, many), (low, high) = self._depths, self._costs
        return low + max(high - low, 0.0) / (many - few) * (layers - few)


def _written(checkpoint: Checkpoint, order: Order, depth: int, folder: Path) -> ModelFolder:
    writer = ModelWriter(checkpoint, folder, replace(order, layers=tuple(range(depth))))
    writer.describe()
    writer.build(silent)
    return open_model(folder)


LEAST_GAIN = 1.02
"""How much faster the pair has to be predicted for "auto" to drop anything: less is noise."""

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
"""How many layers "auto" tries to drop, up to half of them."""

Speed = Callable[[float, int], float]
"""The predicted speed-up at an acceptance, with so many layers."""


@dataclass(frozen=True)
class Choice:
    """The layers to leave out, and the acceptance of every set that was tried, the empty one among them."""

    dropped: Dropped
    tried: Mapping[Dropped, float]


class DepthWriter:
    """Writes a draft once the target beside it is finished, with the layers that pay."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, order: Order, target: Path) -> None:
        """`order.depth` says how many layers; SpecdecError for more than there are."""
        self._writer = ModelWriter(checkpoint, folder, order)
        self._whole, self._target = checkpoint, target
        self._layers = self._writer.architecture.layers
        self.steps, self._found = self._writer.steps, dict[str, Any]()
        if order.depth != "auto" and (order.depth or 0) > self._layers:
            raise SpecdecError(
                f"cannot keep {order.depth} layers of {checkpoint.source.name}",
                f"it has {self._layers}",
                "give a smaller number",
            )

    @property
    def format_name(self) -> str:
        """As people write it."""
        return self._writer.format_name

    @property
    def findings(self) -> Mapping[str, Any]:
        """Those of the writer, and under `layers` what was tried and chosen."""
        return {**self._writer.findings, "layers": self._found}

    def describe(self) -> ModelFolder:
        """Write tokenizer and config.json, of the whole model until the choice is made."""
        return self._writer.describe()

    def build(self, step: Step) -> dict[str, int]:
        """Choose, write the graph and the facts; returns the bytes of each tensor."""
        step("choosing layers", 0, self.steps)
        writer, speed = self._writer, self._speed()
        texts = Answers.of(self._answers())
        ids = writer.kept_ids()
        depth = writer.order.depth or self._layers
        choice = choose(self._layers, depth, lambda sets: agreements(self._whole, texts, sets, ids), speed)
        self._found |= _report(choice, self._layers, speed)
        if choice.dropped:
            kept = tuple(index for index in range(self._layers) if index not in choice.dropped)
            self._writer = ModelWriter(self._whole, writer.folder, replace(writer.order, layers=kept))
            self._writer.describe()
        sizes = self._writer.build(step)
        step("head", self.steps, self.steps)
        return sizes

    def _answers(self) -> list[tuple[list[int], list[int]]]:
        if found := answers(self._target):
            return found
        why = "no built-in prompt and its answer fit into the target's context"
        raise SpecdecError("cannot tell which layers the draft needs", why, "leave out --draft-layers")

    def _speed(self) -> Speed:
        costs = steady_cost_ms([open_model(self._target)])[0]
        target = Curve(tuple(costs), tuple(costs.values()))
        token = TokenCost(self._whole, self._writer.order, self._writer.folder.parent)
        self._found["target_cost_ms"] = {str(width): round(ms, 3) for width, ms in costs.items()}
        self._found["draft_token_ms"] = round(token(self._layers), 3)

        def speed(acceptance: float, layers: int) -> float:
            each = token(layers)
            return predicted_speedup(acceptance, target, Curve((1, 2), (each, 2 * each)))

        return speed


def choose(
    layers: int, depth: Depth, measure: Callable[[Iterable[Dropped]], Mapping[Dropped, float]], speed: Speed
) -> Choice:
    """The set to leave out so that `depth` layers stay, or with "auto" the one with the best speed.

    Each layer is left out alone first; sets are then the least missed ones, and neighbours that are.
    """
    whole = Dropped()
    tried = dict(measure([whole, *(Dropped([index]) for index in range(layers))]))
    missed = [tried[whole] - tried[Dropped([index])] for index in range(layers)]
    counts = [size for size in SIZES if size <= layers // 2] if depth == "auto" else [layers - depth]
    more = [dropped for count in counts if 1 < count < layers for dropped in _sets(missed, count)]
    tried |= measure(more) if more else {}
    sizes = range(layers // 2 + 1) if depth == "auto" else [layers - depth]
    eligible = [dropped for dropped in tried if len(dropped) in sizes]
    gains = {dropped: speed(tried[dropped], layers - len(dropped)) for dropped in eligible}
    best = max(eligible, key=lambda dropped: (gains[dropped], tried[dropped]))
    if depth == "auto" and gains[best] < LEAST_GAIN * gains[whole]:
        best = whole
    return Choice(best, tried)


def _sets(missed: Sequence[float], count: int) -> list[Dropped]:
    """Those `count` layers whose loss costs least, one by one and as neighbours."""
    alone = sorted(range(len(missed)), key=lambda index: (missed[index], index))[:count]
    starts = range(len(missed) - count + 1)
    start = min(starts, key=lambda first: (sum(missed[first : first + count]), first))
    return [Dropped(alone), Dropped(range(start, start + count))]


def _report(choice: Choice, layers: int, speed: Speed) -> dict[str, Any]:
    """What report.json holds of it: the choice, and the best set of each size."""
    best: dict[int, Dropped] = {}
    for dropped in sorted(choice.tried, key=lambda dropped: -choice.tried[dropped]):
        best.setdefault(len(dropped), dropped)
    rows = [best[size] for size in sorted(best)]
    return {
        "dropped": sorted(choice.dropped),
        "kept": layers - len(choice.dropped),
        "acceptance_before": round(choice.tried[Dropped()], 4),
        "acceptance_after": round(choice.tried[choice.dropped], 4),
        "tried": [
            {
                "dropped": sorted(dropped),
                "acceptance": round(choice.tried[dropped], 4),
                "predicted_speedup": round(speed(choice.tried[dropped], layers - len(dropped)), 3),
            }
            for dropped in rows
        ],
    }
