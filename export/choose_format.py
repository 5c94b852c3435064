"""The target in the format that is fastest here at equal quality: candidates are exported, measured, and one stays."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec_onnx.export.checkpoint import Checkpoint
from specdec_onnx.export.graph.architecture import read_architecture
from specdec_onnx.export.graph.model_writer import ModelWriter, Order, describe
from specdec_onnx.export.graph.transformer import Step
from specdec_onnx.export.quality.measure import FloatModel, compare, steady_cost_ms, text_tokens
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.runtime.machine.costs import Curve, predicted_speedup

WITH_DRAFT, ALONE = 0.7, 0.4
"""Chances that a drafted token is kept: a draft model's, and that of a draft from the text so far, which costs nothing."""

EQUAL = 0.01
"""Nats of KL to the float model within which two candidates count as equally good."""

CLEARLY = 1.25
"""How many times faster than the best candidate a worse one has to be."""

TOLERABLE = 0.05
"""Nats beyond which no speed makes up for the loss: about what good int4 costs a model of a billion weights."""

WIDTHS = (1, 2, 5, 8)
_TOKENS = 256


@dataclass(frozen=True)
class Measured:
    """A candidate: milliseconds of a pass by width, nats to the float model, and the speed predicted from that."""

    name: str
    costs: Mapping[int, float]
    kl: float
    tokens_per_second: float


class FormatWriter:
    """Writes one model in each of `order.candidates`, and keeps the best."""

    def __init__(
        self, checkpoint: Checkpoint, folder: Path, order: Order, draft_cost_ms: Callable[[], float] | None
    ) -> None:
        """SpecdecError for an unknown family or a missing tensor; `draft_cost_ms` tells what a drafted token costs."""
        self._checkpoint, self._folder, self._draft_cost = checkpoint, folder, draft_cost_ms
        self._names = [format.name for format in order.candidates]
        self._orders = [replace(order, format=format, candidates=()) for format in order.candidates]
        writer = ModelWriter(checkpoint, folder, self._orders[0])
        self._each, self.steps = writer.steps, len(self._orders) * writer.steps + 1
        self.format_name, self.findings = writer.format_name, dict[str, Any]()
        self._token_ms = 0.0

    def describe(self) -> ModelFolder:
        """Write tokenizer and config.json; the folder can be compared with another one, but not run."""
        return describe(self._checkpoint, self._folder)

    def build(self, step: Step) -> dict[str, int]:
        """Write, measure and choose; returns the bytes of each tensor of the one that stays."""
        written = [self._write(place, step) for place in range(len(self._orders))]
        step("measuring formats", self.steps - 1, self.steps)
        found = self._measured()
        place = found.index(best := choose(found))
        self._keep(place)
        sizes, findings = written[place]
        self.format_name, self.findings = best.name, findings | {"formats": self._report(found, best)}
        step("measuring formats", self.steps, self.steps)
        return sizes

    def _write(self, place: int, step: Step) -> tuple[dict[str, int], dict[str, Any]]:
        name, before = self._names[place], place * self._each

        def inner(what: str, done: int, total: int) -> None:
            step(f"{name} {what}", before + done, self.steps)

        writer = ModelWriter(self._checkpoint, self._place(place), self._orders[place])
        writer.describe()
        return writer.build(inner), dict(writer.findings)

    def _measured(self) -> list[Measured]:
        models = [open_model(self._place(place)) for place in range(len(self._orders))]
        look = read_architecture(self._checkpoint.config, models[0].context_length)
        reference = FloatModel(self._checkpoint, look).logits(text_tokens(models[0], _TOKENS))
        self._token_ms = self._draft_cost() if self._draft_cost else 0.0
        acceptance, found = WITH_DRAFT if self._draft_cost else ALONE, []
        for name, model, costs in zip(self._names, models, steady_cost_ms(models, WIDTHS), strict=True):
            speed = tokens_per_second(acceptance, costs, self._token_ms)
            found.append(Measured(name, costs, compare(reference, model).kl_mean, speed))
        return found

    def _keep(self, place: int) -> None:
        """Move one candidate to where the model belongs, remove the others."""
        for part in sorted(self._place(place).iterdir()):
            part.replace(self._folder / part.name)
        for other in range(len(self._orders)):
            shutil.rmtree(self._place(other))

    def _place(self, place: int) -> Path:
        return self._folder / f".{self._names[place]}"

    def _report(self, found: Sequence[Measured], best: Measured) -> dict[str, Any]:
        return {
            "chosen": best.name,
            "acceptance": WITH_DRAFT if self._draft_cost else ALONE,
            "draft_token_ms": round(self._token_ms, 3),
            "candidates": {
                one.name: {
                    "forward_cost_ms": {str(width): round(ms, 3) for width, ms in one.costs.items()},
                    "kl_mean": round(one.kl, 6),
                    "predicted_tokens_per_second": round(one.tokens_per_second, 2),
                }
                for one in found
            },
        }


def choose(found: Sequence[Measured]) -> Measured:
    """The fastest of those as good as the best within EQUAL nats, or TOLERABLE and CLEARLY faster than the best."""
    best = min(found, key=lambda one: one.kl)
    speed = CLEARLY * best.tokens_per_second
    fit = [
        one
        for one in found
        if one.kl <= best.kl + EQUAL or (one.kl <= TOLERABLE and one.tokens_per_second >= speed)
    ]
    return max(fit, key=lambda one: one.tokens_per_second)


def tokens_per_second(acceptance: float, costs: Mapping[int, float], draft_token_ms: float) -> float:
    """The best over draft lengths, from milliseconds of a pass by width and of a drafted token."""
    target = Curve(tuple(costs), tuple(costs.values()))
    draft = Curve((1, 2), (draft_token_ms, 2 * draft_token_ms))
    return 1000 / target(1) * predicted_speedup(acceptance, target, draft)
