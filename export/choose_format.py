"""The target in the format that is fastest here at equal quality: candidates are exported, measured, and one is kept."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec_onnx.export.checkpoint import Checkpoint
from specdec_onnx.export.graph.architecture import read_architecture
from specdec_onnx.export.graph.model_writer import ModelWriter, describe
from specdec_onnx.export.quality.float_model import FloatModel
from specdec_onnx.export.quality.measure import compare, steady_cost_ms, text_tokens
from specdec_onnx.export.spec import ModelSpec
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.models.progress import Progress
from specdec_onnx.runtime.machine.costs import Curve, predicted_speedup

WITH_DRAFT, WITHOUT_DRAFT = 0.7, 0.4
"""Assumed acceptance of drafted tokens: from a draft model, and from the text so far, where drafting costs nothing."""

EQUAL_KL = 0.01
"""Nats of KL to the float model within which two candidates count as equally good."""

CLEARLY_FASTER = 1.25
"""How many times faster than the best candidate a worse one has to be."""

TOLERABLE_KL = 0.05
"""Nats beyond which no speed makes up for the loss: about what good int4 costs a model of a billion weights."""

_WIDTHS = (1, 2, 5, 8)
_TOKENS = 256


class FormatWriter:
    """Writes one model in each of `spec.candidates`, and keeps the best."""

    def __init__(
        self, checkpoint: Checkpoint, folder: Path, spec: ModelSpec, draft_cost_ms: Callable[[], float] | None
    ) -> None:
        """SpecdecError for an unknown family or a missing tensor; `draft_cost_ms` measures a drafted token."""
        self._checkpoint, self._folder, self._draft_cost_ms = checkpoint, folder, draft_cost_ms
        self._specs = [replace(spec, format=format, candidates=()) for format in spec.candidates]
        self._folders = [folder / f".{format.name}" for format in spec.candidates]
        writer = ModelWriter(checkpoint, folder, self._specs[0])
        self._steps_each, self.steps = writer.steps, len(self._specs) * writer.steps + 1
        self.format_name, self.findings = writer.format_name, dict[str, Any]()

    def describe(self) -> ModelFolder:
        """Write tokenizer and config.json; the folder can be compared with another one, but not run."""
        return describe(self._checkpoint, self._folder)

    def build(self, progress: Progress) -> dict[str, int]:
        """Write, measure and choose; returns the bytes of each tensor of the one that is kept."""
        written = [self._write(index, progress) for index in range(len(self._specs))]
        progress("measuring formats", self.steps - 1, self.steps)
        token_ms = self._draft_cost_ms() if self._draft_cost_ms else 0.0
        candidates = self._measure(token_ms, [name for name, _, _ in written])
        best = choose_format(candidates)
        index = candidates.index(best)
        for part in sorted(self._folders[index].iterdir()):
            part.replace(self._folder / part.name)
        for folder in self._folders:
            shutil.rmtree(folder)
        self.format_name, sizes, findings = written[index]
        self.findings = findings | {"formats": self._report(candidates, best, token_ms)}
        progress("measuring formats", self.steps, self.steps)
        return sizes

    def _write(self, index: int, progress: Progress) -> tuple[str, dict[str, int], dict[str, Any]]:
        spec, before = self._specs[index], index * self._steps_each

        def step(what: str, done: int, total: int) -> None:
            progress(f"{spec.format.name} {what}", before + done, self.steps)

        writer = ModelWriter(self._checkpoint, self._folders[index], spec)
        writer.describe()
        sizes = writer.build(step)
        return writer.format_name, sizes, dict(writer.findings)

    @property
    def _acceptance(self) -> float:
        return WITH_DRAFT if self._draft_cost_ms else WITHOUT_DRAFT

    def _measure(self, token_ms: float, names: Sequence[str]) -> list["Candidate"]:
        models = [open_model(folder) for folder in self._folders]
        architecture = read_architecture(self._checkpoint.config, models[0].context_length)
        reference = FloatModel(self._checkpoint, architecture).logits(text_tokens(models[0], _TOKENS))
        candidates = []
        for name, model, costs in zip(names, models, steady_cost_ms(models, _WIDTHS), strict=True):
            speed = tokens_per_second(self._acceptance, costs, token_ms)
            candidates.append(Candidate(name, costs, compare(reference, model).kl_mean, speed))
        return candidates

    def _report(
        self, candidates: Sequence["Candidate"], best: "Candidate", token_ms: float
    ) -> dict[str, Any]:
        return {
            "chosen": best.name,
            "acceptance": self._acceptance,
            "draft_token_ms": round(token_ms, 3),
            "candidates": {
                one.name: {
                    "forward_cost_ms": {str(width): round(ms, 3) for width, ms in one.costs.items()},
                    "kl_mean": round(one.kl, 6),
                    "predicted_tokens_per_second": round(one.tokens_per_second, 2),
                }
                for one in candidates
            },
        }


@dataclass(frozen=True)
class Candidate:
    """A format: milliseconds of a pass by width, nats of KL to the float model, and the speed predicted from that."""

    name: str
    costs: Mapping[int, float]
    kl: float
    tokens_per_second: float


def choose_format(candidates: Sequence[Candidate]) -> Candidate:
    """The fastest of those as good as the best, or tolerably worse but clearly faster than the best."""
    best = min(candidates, key=lambda one: one.kl)
    speed = CLEARLY_FASTER * best.tokens_per_second
    fit = [
        one
        for one in candidates
        if one.kl <= best.kl + EQUAL_KL or (one.kl <= TOLERABLE_KL and one.tokens_per_second >= speed)
    ]
    return max(fit, key=lambda one: one.tokens_per_second)


def tokens_per_second(acceptance: float, costs: Mapping[int, float], draft_token_ms: float) -> float:
    """Speed at the best draft length, from milliseconds of a pass by width and of a drafted token."""
    target = Curve(tuple(costs), tuple(costs.values()))
    draft = Curve((1, 2), (draft_token_ms, 2 * draft_token_ms))
    return 1000 / target(1) * predicted_speedup(acceptance, target, draft)
