"""A draft with fewer layers: which ones to drop, and whether that pays, is measured against the target's answers."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint import BlockCheckpoint, Checkpoint, SourceFiles
from specdec_onnx.export.checkpoint.weights import Weights
from specdec_onnx.export.graph.architecture import read_architecture
from specdec_onnx.export.graph.model_writer import ModelWriter
from specdec_onnx.export.quality.float_model import FloatModel
from specdec_onnx.export.quality.measure import greedy_answers, steady_cost_ms
from specdec_onnx.export.quantization.linear import Blocks
from specdec_onnx.export.spec import LayerCount, ModelSpec
from specdec_onnx.export.staging import write_json
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.models.progress import Progress, silent
from specdec_onnx.runtime.machine.costs import Curve, predicted_speedup

Array = NDArray[np.float32]
Dropped = frozenset[int]

Speed = Callable[[float, int], float]
"""The predicted speed-up at an acceptance rate and a number of layers."""

LEAST_GAIN = 1.02
"""Times faster that "auto" must predict before it drops a layer: less is noise."""

_DROP_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)
"""How many layers "auto" tries to drop, up to half of them."""

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


class PruningWriter:
    """Writes a draft after its target, with the layers that pay."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, spec: ModelSpec, target: Path) -> None:
        """`target` is the target's folder, complete when `build` is called; SpecdecError for too many layers."""
        self._writer = ModelWriter(checkpoint, folder, spec)
        self._whole, self._target = checkpoint, target
        self._layers = self._writer.architecture.layers
        self._count: LayerCount = spec.layer_count or self._layers
        self._report: dict[str, Any] = {}
        self.steps, self.format_name = self._writer.steps, self._writer.format_name
        if self._count != "auto" and self._count > self._layers:
            raise SpecdecError(
                f"cannot keep {self._count} layers of {checkpoint.source.name}",
                f"it has {self._layers}",
                "give a smaller number",
            )

    @property
    def findings(self) -> Mapping[str, Any]:
        """Those of the model, and under `layers` what was tried and chosen."""
        return {**self._writer.findings, "layers": self._report}

    def describe(self) -> ModelFolder:
        """Write tokenizer and config.json, of the whole model until layers are chosen."""
        return self._writer.describe()

    def build(self, progress: Progress) -> dict[str, int]:
        """Choose layers, write the graph and specdec.json; returns the bytes of each tensor."""
        progress("choosing layers", 0, self.steps)
        whole, speed = self._writer, self._speed()
        texts, ids = self._answered_texts(), whole.kept_ids()
        choice = choose_layers(
            self._layers, self._count, lambda sets: agreements(self._whole, texts, sets, ids), speed
        )
        self._report |= _report(choice, self._layers, speed)
        if not choice.dropped:
            return whole.build(progress)
        kept = [index for index in range(self._layers) if index not in choice.dropped]
        self._writer = ModelWriter(LayerSubset(self._whole, kept), whole.folder, whole.spec)
        self._writer.describe()
        sizes = self._writer.build(progress)
        facts = open_model(whole.folder).facts
        write_json(whole.folder / "specdec.json", {**facts, "kept_layers": kept})
        progress("head", self.steps, self.steps)
        return sizes

    def _answered_texts(self) -> "AnsweredTexts":
        if answers := greedy_answers(self._target):
            return AnsweredTexts.of(answers)
        why = "no built-in prompt and its answer fit into the target's context"
        raise SpecdecError("cannot tell which layers the draft needs", why, "leave out --draft-layers")

    def _speed(self) -> Speed:
        costs = steady_cost_ms([open_model(self._target)])[0]
        target = Curve(tuple(costs), tuple(costs.values()))
        token_cost = TokenCost(self._whole, self._writer.spec, self._writer.folder.parent)
        self._report["target_cost_ms"] = {str(width): round(ms, 3) for width, ms in costs.items()}
        self._report["draft_token_ms"] = round(token_cost(self._layers), 3)

        def speed(acceptance: float, layers: int) -> float:
            token_ms = token_cost(layers)
            return predicted_speedup(acceptance, target, Curve((1, 2), (token_ms, 2 * token_ms)))

        return speed


@dataclass(frozen=True)
class LayerChoice:
    """The layers to drop, and the acceptance of every set that was tried, the empty one among them."""

    dropped: Dropped
    tried: Mapping[Dropped, float]


def choose_layers(
    layers: int,
    count: LayerCount,
    measure: Callable[[Iterable[Dropped]], Mapping[Dropped, float]],
    speed: Speed,
) -> LayerChoice:
    """The set to drop so that `count` layers stay, or with "auto" the one with the best predicted speed.

    Each layer is first dropped alone; larger sets are the least missed layers, and the least missed neighbours.
    """
    none, auto = Dropped(), count == "auto"
    tried = dict(measure([none, *(Dropped([index]) for index in range(layers))]))
    missed = [tried[none] - tried[Dropped([index])] for index in range(layers)]
    counts = [layers - count] if count != "auto" else [drop for drop in _DROP_COUNTS if drop <= layers // 2]
    larger = [dropped for drop in counts if 1 < drop < layers for dropped in _least_missed(missed, drop)]
    tried |= measure(larger) if larger else {}
    allowed = range(layers // 2 + 1) if auto else counts
    gains = {drop: speed(tried[drop], layers - len(drop)) for drop in tried if len(drop) in allowed}
    best = max(gains, key=lambda dropped: (gains[dropped], tried[dropped]))
    if auto and gains[best] < LEAST_GAIN * gains[none]:
        best = none
    return LayerChoice(best, tried)


def _least_missed(missed: Sequence[float], count: int) -> list[Dropped]:
    """The `count` layers whose loss costs least, taken one by one and as neighbours."""
    alone = sorted(range(len(missed)), key=lambda index: (missed[index], index))[:count]
    starts = range(len(missed) - count + 1)
    start = min(starts, key=lambda first: (sum(missed[first : first + count]), first))
    return [Dropped(alone), Dropped(range(start, start + count))]


def _report(choice: LayerChoice, layers: int, speed: Speed) -> dict[str, Any]:
    """What report.json holds: the choice, and the best set of each size."""
    best: dict[int, Dropped] = {}
    for dropped in sorted(choice.tried, key=lambda dropped: -choice.tried[dropped]):
        best.setdefault(len(dropped), dropped)
    return {
        "dropped": sorted(choice.dropped),
        "kept": layers - len(choice.dropped),
        "acceptance_before": round(choice.tried[Dropped()], 4),
        "acceptance_after": round(choice.tried[choice.dropped], 4),
        "tried": [
            {
                "dropped": sorted(dropped),
                "acceptance": round(choice.tried[dropped], 4),
                "predicted_speedup": round(speed(choice.tried[dropped], layers - size), 3),
            }
            for size, dropped in sorted(best.items())
        ],
    }


@dataclass(frozen=True)
class AnsweredTexts:
    """Token ids [texts, length]; `answered` [texts, length] marks those that the target wrote, greedily."""

    tokens: NDArray[np.int64]
    answered: NDArray[np.bool_]

    @classmethod
    def of(cls, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> "AnsweredTexts":
        """From prompts and the target's answers to them; padded at the end, where no earlier token attends."""
        length = max(len(prompt) + len(answer) for prompt, answer in texts)
        tokens = np.zeros((len(texts), length), np.int64)
        answered = np.zeros((len(texts), length), bool)
        for row, (prompt, answer) in enumerate(texts):
            end = len(prompt) + len(answer)
            tokens[row, :end] = [*prompt, *answer]
            answered[row, len(prompt) : end] = True
        return cls(tokens, answered)


def agreements(
    draft: Checkpoint, texts: AnsweredTexts, candidates: Iterable[Dropped], kept_ids: NDArray[np.int64] | None
) -> dict[Dropped, float]:
    """By set of dropped layers, the share of the target's tokens that the float draft finds likeliest, too.

    Of a trimmed head only `kept_ids` are scored. Each layer is read once, and drafts that have dropped the same
    layers so far share their results: memory holds one layer and the candidates' activations.
    """
    architecture, wanted = read_architecture(draft.config), list(dict.fromkeys(candidates))
    model, weights = FloatModel(draft, architecture), Weights(draft, architecture)
    x = model.embed(texts.tokens)
    states = {Dropped(): (x, np.zeros_like(x))}
    for index in range(architecture.layers):
        so_far = {Dropped(layer for layer in dropped if layer <= index) for dropped in wanted}
        following = {known | {index}: state for known, state in states.items() if known | {index} in so_far}
        running = [known for known in states if known in so_far]
        if running:
            layer = weights.layer(index)
            following |= {known: model.layer(layer, *states[known])[:2] for known in running}
        states = following
    return _scored(model, weights, texts, states, kept_ids)


def _scored(
    model: FloatModel,
    weights: Weights,
    texts: AnsweredTexts,
    states: Mapping[Dropped, tuple[Array, Array]],
    kept_ids: NDArray[np.int64] | None,
) -> dict[Dropped, float]:
    head = weights.head() if kept_ids is None else weights.head()[kept_ids]
    predicting = np.roll(texts.answered, -1, axis=1)  # each token is predicted at its predecessor
    answer, scores = texts.tokens[texts.answered], dict[Dropped, float]()
    for dropped, (x, residual) in states.items():
        best = (model.normed(x + residual)[predicting] @ head.T).argmax(axis=1)
        greedy = best if kept_ids is None else kept_ids[best]
        scores[dropped] = float(np.mean(greedy == answer))
    return scores


class TokenCost:
    """Milliseconds of a single-token pass by number of layers: a straight line through two measured models."""

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, work: Path) -> None:
        """Measure models of the first few layers, written below `work` (an existing folder) and removed again."""
        layers = int(checkpoint.config["num_hidden_layers"])
        self._counts = sorted({max(1, layers // 4), max(1, layers // 2), min(2, layers)})[-2:]
        spec = replace(spec, smooth=False)
        with TemporaryDirectory(dir=work, prefix=".layers-") as folder:
            models = [_first_layers(checkpoint, spec, count, Path(folder)) for count in self._counts]
            self._costs = [costs[1] for costs in steady_cost_ms(models, (1,))]

    def __call__(self, layers: int) -> float:
        """Milliseconds with that many layers; never less for more of them."""
        if len(self._counts) == 1:
            return self._costs[0]
        (few, many), (low, high) = self._counts, self._costs
        return low + max(high - low, 0.0) / (many - few) * (layers - few)


def _first_layers(checkpoint: Checkpoint, spec: ModelSpec, count: int, work: Path) -> ModelFolder:
    writer = ModelWriter(LayerSubset(checkpoint, range(count)), work / str(count), spec)
    writer.describe()
    writer.build(silent)
    return open_model(writer.folder)


class LayerSubset:
    """A checkpoint with only the layers `kept` (ascending), renumbered; its family is one the graph builder knows."""

    def __init__(self, whole: Checkpoint, kept: Sequence[int]) -> None:
        self._whole = whole
        self.config: dict[str, Any] = subset_config(whole.config, kept)
        self.source: SourceFiles = whole.source
        self._whole_names = dict(_renamed(whole.names(), kept))

    def names(self) -> frozenset[str]:
        """Every tensor's name, its layer renumbered."""
        return frozenset(self._whole_names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape [out, in], without reading the data."""
        return self._whole.shape(self._whole_name(name))

    def tensor(self, name: str) -> Array:
        """One tensor as float32 [out, in]; SpecdecError if the checkpoint lacks it."""
        return self._whole.tensor(self._whole_name(name))

    def blocks(self, name: str) -> Blocks | None:
        """A matrix as it is stored, if the checkpoint tells."""
        whole = self._whole
        return whole.blocks(self._whole_name(name)) if isinstance(whole, BlockCheckpoint) else None

    def sample(self, name: str) -> Blocks | None:
        """One row of these blocks, which shows their kind."""
        whole = self._whole
        return whole.sample(self._whole_name(name)) if isinstance(whole, BlockCheckpoint) else None

    def write_tokenizer(self, folder: Path) -> None:
        """The whole model's."""
        self._whole.write_tokenizer(folder)

    def _whole_name(self, name: str) -> str:
        return self._whole_names.get(name, name)


def subset_config(config: Mapping[str, Any], kept: Sequence[int]) -> dict[str, Any]:
    """config.json of the layers `kept`; what a family derives from a layer's number is written out."""
    architecture = read_architecture(config)
    spans = [architecture.spans[index] for index in kept]
    subset = {**config, "num_hidden_layers": len(kept)}
    if any(span.window for span in architecture.spans):
        subset["layer_types"] = [f"{'sliding' if span.window else 'full'}_attention" for span in spans]
    elif "layer_types" in config:
        subset["layer_types"] = [config["layer_types"][index] for index in kept]
    if architecture.family.without_rope_every:
        subset["no_rope_layers"] = [int(span.rope is not None) for span in spans]
    return subset


def _renamed(names: Iterable[str], kept: Sequence[int]) -> Iterable[tuple[str, str]]:
    """New and old name of every tensor that stays."""
    numbers = {old: new for new, old in enumerate(kept)}
    for name in names:
        match = _LAYER.fullmatch(name)
        if match is None:
            yield name, name
        elif int(match[1]) in numbers:
            yield f"model.layers.{numbers[int(match[1])]}.{match[2]}", name
