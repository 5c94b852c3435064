"""What an export costs, loses and gains: time per pass, distance to its float source, acceptance and speed-up."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint import Checkpoint
from specdec_onnx.export.graph.architecture import read_architecture
from specdec_onnx.export.quality.float_model import FloatModel
from specdec_onnx.export.quality.report import read_report, write_report
from specdec_onnx.export.staging import write_json
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.models.pair import open_pair
from specdec_onnx.models.progress import Progress
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.generate import Statistics
from specdec_onnx.runtime.machine.costs import Curve, predicted_speedup
from specdec_onnx.runtime.machine.footprint import PROGRAM, predict
from specdec_onnx.runtime.model.decoder import Decoder
from specdec_onnx.runtime.text.prompt import prompt_tokens

Logits = NDArray[np.float32]

_REFERENCE = "fp32"
"""What quality is measured against: the source's own weights, in float arithmetic."""

_QUALITY = ("kl_mean", "top1_agreement", "kept_probability", "quality_reference", "quality_tokens")
"""What specdec.json repeats of the report."""

_WIDTHS = (1, 2, 4, 8, 16)
_TOKENS_BEFORE = 300
_TOKENS = 768
_CHUNK = 64
_REPEATS, _LAPS = 7, 3

_PROMPTS = (
    "Write a Python function that merges two sorted lists into one sorted list.",
    "Explain in three sentences why the sky is blue.",
    """Rename the variable `x` to `total` and return the whole function:
def add(values):
    x = 0
    for value in values:
        x += value
    return x""",
    "Which is larger, 3/4 of 80 or 2/3 of 96? Show your steps.",
)
_NEW_TOKENS = 48
_PROMPT_CONTEXT = 512
_MEMORY_CONTEXTS = (1024, 4096, 16384, 32768)


def measure_export(
    folder: Path, sources: Mapping[str, Checkpoint | None], progress: Progress, began: float
) -> None:
    """Complete the report and the facts of a finished export.

    Args:
        folder: The export.
        sources: By role (subfolder), the float checkpoint to compare with; None if there is none.
        progress: Called before each measurement.
        began: `time.perf_counter()` when the export began.

    Raises:
        SpecdecError: The results could not be written.
    """
    try:
        report = dict(read_report(folder))
        for done, (role, source) in enumerate(sources.items()):
            progress(f"measuring {role}".strip(), done, len(sources) + 1)
            model = open_model(folder / role)
            measured = measure(model, source)
            report |= {role: report[role] | measured} if role else measured
            quality = {key.removeprefix("quality_"): measured[key] for key in _QUALITY if key in measured}
            if quality:
                write_json(model.path / "specdec.json", {**model.facts, "quality": quality})
            write_report(folder, report)
        progress("trying it out", len(sources), len(sources) + 1)
        report |= try_out(folder, report)
        write_report(folder, report | {"whole_seconds": round(time.perf_counter() - began, 2)})
    except OSError as error:
        raise SpecdecError(
            f"{folder} is complete, but the measurements could not be saved",
            str(error),
            "check the free space and the permissions",
        ) from error
    progress("measured", len(sources) + 1, len(sources) + 1)


def measure(model: ModelFolder, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Forward cost and quality, as report.json has them; without a float source, only the cost."""
    costs = {str(width): round(ms, 3) for width, ms in forward_cost_ms(model).items()}
    if checkpoint is None:
        return {"forward_cost_ms": costs}
    source = FloatModel(checkpoint, read_architecture(checkpoint.config, model.context_length))
    quality = asdict(compare(source.logits(text_tokens(model)), model))
    tokens = quality.pop("tokens")
    if model.trimmed_vocabulary is None:
        del quality["kept_probability"]
    return {"forward_cost_ms": costs, **quality, "quality_reference": _REFERENCE, "quality_tokens": tokens}


@dataclass(frozen=True)
class Quality:
    """Distance of a graph's predictions to its source's, over `tokens` positions of the built-in text.

    `kl_mean` is in nats. A trimmed head is compared on the ids it keeps, and `kept_probability` is the probability
    that the source gives to these ids. Perplexities are those of the text, on the same ids.
    """

    tokens: int
    kl_mean: float
    top1_agreement: float
    kept_probability: float
    perplexity: float
    source_perplexity: float


def forward_cost_ms(model: ModelFolder, widths: Sequence[int] = _WIDTHS) -> dict[int, float]:
    """Milliseconds of a pass over S tokens after 300 others, for each width S; the median of several."""
    widths = [width for width in widths if width < _limit(model)]
    context = min(_TOKENS_BEFORE, _limit(model) - max(widths))
    decoder = Decoder.open(model, capacity=context + max(widths))
    tokens = _tokens(model, context + max(widths))
    decoder.forward(tokens[:context], keep=1)
    return {width: 1000 * _time_pass(decoder, tokens[context : context + width], context) for width in widths}


def steady_cost_ms(models: Sequence[ModelFolder], widths: Sequence[int] = _WIDTHS) -> list[dict[int, float]]:
    """Forward costs of models to be compared: they take turns, and the fastest turn of each width counts.

    One model is in memory at a time. Other work on the machine distorts the result only if it lasts several turns.
    """
    laps = [[forward_cost_ms(model, widths) for model in models] for _ in range(_LAPS)]
    return [
        {width: min(costs[width] for costs in turns) for width in turns[0]}
        for turns in zip(*laps, strict=True)
    ]


def text_tokens(model: ModelFolder, count: int = _TOKENS) -> list[int]:
    """The first tokens of the built-in text, as many as the model can hold."""
    return model.tokenizer.encode(_TEXT)[: min(count, _limit(model))]


def compare(reference: Logits, model: ModelFolder) -> Quality:
    """Quality of `model` against the logits [tokens, vocabulary] that its source gives for `text_tokens`."""
    kept, tokens = model.trimmed_vocabulary, text_tokens(model, len(reference))
    decoder = Decoder.open(model, capacity=len(tokens) + 1, half_cache=False)  # judges the weights alone
    divergence, agreed, share, surprise = 0.0, 0, 0.0, np.zeros((2, 0))
    for first in range(0, len(tokens), _CHUNK):
        theirs, ours = reference[first : first + _CHUNK], decoder.forward(tokens[first : first + _CHUNK])
        best = ours.argmax(axis=1) if kept is None else kept[ours.argmax(axis=1)]
        agreed += int((best == theirs.argmax(axis=1)).sum())
        part = theirs if kept is None else theirs[:, kept]
        share += float(np.exp(_log_sum(part) - _log_sum(theirs)).sum())
        divergence += float(_divergence(part, ours).sum())
        following = np.array(tokens[first + 1 : first + _CHUNK + 1])
        both = [_surprise(rows, following, kept) for rows in (ours, part)]
        surprise = np.concatenate([surprise, both], axis=1)
    count, perplexities = len(tokens), np.exp(surprise.mean(axis=1)) if surprise.size else np.ones(2)
    return Quality(count, divergence / count, agreed / count, share / count, *map(float, perplexities))


def _surprise(
    logits: Logits, following: NDArray[np.int64], kept: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """Nats of each next token, of those among the `kept` ids that the columns stand for."""
    rows, columns = np.arange(len(following)), following
    if kept is not None:
        rows = np.flatnonzero(np.isin(following, kept))
        columns = np.searchsorted(kept, following[rows])
    chosen = logits[rows].astype(np.float64)
    return _log_sum(logits[rows]) - chosen[np.arange(len(rows)), columns]


def _divergence(reference: Logits, other: Logits) -> NDArray[np.float64]:
    """KL(reference ‖ other) of each row, in nats."""
    left = reference.astype(np.float64) - _log_sum(reference)[:, None]
    right = other.astype(np.float64) - _log_sum(other)[:, None]
    return (np.exp(left) * (left - right)).sum(axis=1)


def _log_sum(logits: Logits) -> NDArray[np.float64]:
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
    tokens = model.tokenizer.encode(_TEXT)
    return (tokens * (1 + count // len(tokens)))[:count]


def _limit(model: ModelFolder) -> int:
    """Most tokens a pass may reach; one is left for the row a lone token is padded with."""
    return model.context_length - 1


def try_out(folder: Path, report: Mapping[str, Any]) -> dict[str, Any]:
    """Memory by context length, and for a pair acceptance and speed-up on built-in prompts.

    `report` has the forward costs that the prediction is based on.
    """
    pair = open_pair(folder)
    models = [pair.target] if pair.draft is None else [pair.target, pair.draft]
    results: dict[str, Any] = {"memory_bytes": memory(models)}
    if pair.draft is not None:
        engine, prompts = _open_engine(folder)
        if prompts:
            results["speculation"] = _speculation(engine, prompts, report)
    return results


def greedy_answers(folder: Path) -> list[tuple[list[int], list[int]]]:
    """The built-in prompts that fit the context of a model or target, and its greedy answers, as token ids."""
    engine, prompts = _open_engine(folder)
    answers = []
    for prompt in prompts:
        engine.forget()
        steps = engine.stream(prompt, max_new_tokens=_NEW_TOKENS)
        answers.append((prompt, [token for step in steps for token in step.tokens]))
    return answers


def _open_engine(folder: Path) -> tuple[Engine, list[list[int]]]:
    """An engine for the export, and the prompts that its context has room to answer."""
    model = open_pair(folder).target
    engine = load(folder, context=None if model.context_length < 2 * _PROMPT_CONTEXT else _PROMPT_CONTEXT)
    prompts = [prompt_tokens(model, text) for text in _PROMPTS]
    return engine, [tokens for tokens in prompts if len(tokens) + _NEW_TOKENS < engine.context]


def memory(models: Sequence[ModelFolder]) -> dict[str, int]:
    """Bytes that `models` and the program take together, by context length up to what all of them reach."""
    longest = min(model.context_length for model in models)
    contexts = sorted({min(context, longest) for context in _MEMORY_CONTEXTS})
    return {
        str(context): PROGRAM + sum(predict(model, context).total for model in models) for context in contexts
    }


def _speculation(
    engine: Engine, prompts: Sequence[Sequence[int]], report: Mapping[str, Any]
) -> dict[str, Any]:
    runs = _runs(engine, prompts, [mode for mode in ("plain", "draft", "auto") if mode in engine.modes])
    drafted = runs["draft"]
    drafts = sum(drafted.drafted_by_position[:1])
    first = sum(drafted.accepted_by_position[:1]) / max(drafts, 1)
    results: dict[str, Any] = {
        "prompts": len(prompts),
        "acceptance_rate": round(drafted.acceptance_rate, 4),
        "acceptance_first": round(first, 4),
        "tokens_per_round": round(drafted.tokens_per_round, 3),
        "measured_speedup": {
            mode: round(run.decode_tokens_per_second / runs["plain"].decode_tokens_per_second, 3)
            for mode, run in runs.items()
            if mode != "plain"
        },
    }
    costs = [report.get(role, {}).get("forward_cost_ms") for role in ("target", "draft")]
    if all(costs):
        target, draft = (Curve(tuple(map(int, cost)), tuple(cost.values())) for cost in costs)
        results["predicted_speedup"] = round(predicted_speedup(first, target, draft), 3)
    return results


def _runs(engine: Engine, prompts: Sequence[Sequence[int]], modes: Sequence[str]) -> dict[str, Statistics]:
    """All prompts in each mode, added up; the modes take turns, and each starts with an empty cache."""
    answers: dict[str, list[Statistics]] = {mode: [] for mode in modes}
    for prompt in prompts:
        for mode, done in answers.items():
            engine.forget()
            engine.generate(prompt, mode=mode, max_new_tokens=_NEW_TOKENS)
            done.append(engine.last.statistics)
    return {mode: Statistics.total(done) for mode, done in answers.items()}


_TEXT = '''\
The harbour lay quiet under a thin layer of fog when Marta opened the workshop. She had repaired clocks for thirty
years, and she still began each day in the same way: she lit the stove, wiped the bench, and listened. A healthy clock
has a rhythm that hardly anyone notices, while a sick one stumbles, hurries, or pauses before it strikes. On this
particular morning the tall clock from the town hall refused to speak at all. Its pendulum was straight, its spring was
new, and yet the hands had stopped at nine minutes past four. "You are not broken," she told it. "You are only afraid
of something." She took off the face and found a spider, which had tied two wheels together with remarkable patience.

Water boils at a lower temperature on a mountain than at the coast, because the air above presses on it less. At sea
level the boiling point is 100 degrees Celsius; at 3,000 metres it is close to 90. Cooking therefore takes longer, and
a pressure cooker, which raises the pressure again, saves fuel as well as time. The same idea explains why a liquid
can be distilled gently in a vacuum.

from dataclasses import dataclass, field


@dataclass
class Inventory:
    """Counts items by name and remembers the smallest stock that was ever seen."""

    items: dict[str, int] = field(default_factory=dict)
    lowest: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int = 1) -> None:
        if count < 0:
            raise ValueError(f"cannot add {count} of {name}")
        self.items[name] = self.items.get(name, 0) + count
        self.lowest.setdefault(name, self.items[name])

    def remove(self, name: str, count: int = 1) -> int:
        available = self.items.get(name, 0)
        taken = min(available, count)
        self.items[name] = available - taken
        self.lowest[name] = min(self.lowest.get(name, available), available - taken)
        return taken


def binary_search(values: list[int], wanted: int) -> int | None:
    low, high = 0, len(values) - 1
    while low <= high:
        middle = (low + high) // 2
        if values[middle] == wanted:
            return middle
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return None

Question: Which is larger, three quarters of eighty or two thirds of ninety-six?
Answer: Three quarters of 80 is 60. Two thirds of 96 is 64. So two thirds of ninety-six is larger, by 4.

Question: Name three things to check before a long bicycle tour.
Answer: First, the brakes: the pads should not be worn and the cables should move freely. Second, the tyres: look for
cuts, and pump them to the pressure printed on the side. Third, the chain: clean it, oil it, and replace it if it has
stretched. It also helps to carry a spare tube, a small pump and some water.

SELECT city, COUNT(*) AS visits, AVG(duration) AS minutes
FROM journeys
WHERE started >= '2024-01-01' AND cancelled = FALSE
GROUP BY city
HAVING COUNT(*) > 10
ORDER BY visits DESC;

Dear Ms Okafor, thank you for your letter of 12 March. We have looked at the measurements that you sent, and we agree
that the second sensor reads about half a degree too high. Please return it in the enclosed box; we will replace it free
of charge and send you the calibration sheet of the new one. We apologise for the trouble. Kind regards, the service
team.
'''
