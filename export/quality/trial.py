"""A finished export at work on a few built-in prompts: what is accepted, what it brings, what it needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.pair import open_pair
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.generate import Statistics
from specdec_onnx.runtime.machine.costs import Curve, predicted_speedup
from specdec_onnx.runtime.machine.footprint import predict
from specdec_onnx.runtime.text.prompt import prompt_tokens

PROMPTS = (
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
NEW_TOKENS = 48
CONTEXTS = (1024, 4096, 16384, 32768)
_CONTEXT = 512


def try_out(folder: Path, report: Mapping[str, Any]) -> dict[str, Any]:
    """More for the report of the export in `folder`: memory, and for a pair acceptance and speed-up.

    `report` holds the forward costs that the prediction starts from.
    """
    pair = open_pair(folder)
    models = [pair.target] if pair.draft is None else [pair.target, pair.draft]
    found: dict[str, Any] = {"memory_bytes": memory(models)}
    if pair.draft is not None:
        engine, prompts = _engine(folder)
        if prompts:
            found["speculation"] = _speculation(engine, prompts, report)
    return found


def answers(folder: Path) -> list[tuple[list[int], list[int]]]:
    """The built-in prompts that fit the model's context, and its greedy answers to them, as token ids."""
    engine, prompts = _engine(folder)
    found = []
    for prompt in prompts:
        engine.forget()
        steps = engine.stream(prompt, max_new_tokens=NEW_TOKENS)
        found.append((prompt, [token for step in steps for token in step.tokens]))
    return found


def _engine(folder: Path) -> tuple[Engine, list[list[int]]]:
    """The export at work, and the prompts that it has room to answer."""
    model = open_pair(folder).target
    engine = load(folder, context=None if model.context_length < 2 * _CONTEXT else _CONTEXT)
    prompts = [prompt_tokens(model, text) for text in PROMPTS]
    return engine, [tokens for tokens in prompts if len(tokens) + NEW_TOKENS < engine.context]


def memory(models: Sequence[ModelFolder]) -> dict[str, int]:
    """Bytes that `models` take together, by context length up to what all of them reach."""
    longest = min(model.context_length for model in models)
    contexts = sorted({min(context, longest) for context in CONTEXTS})
    return {str(context): sum(predict(model, context).total for model in models) for context in contexts}


def _speculation(
    engine: Engine, prompts: Sequence[Sequence[int]], report: Mapping[str, Any]
) -> dict[str, Any]:
    runs = _runs(engine, prompts, [mode for mode in ("plain", "draft", "auto") if mode in engine.modes])
    drafted = runs["draft"]
    first = _share(drafted.accepted_by_position[:1], drafted.drafted_by_position[:1])
    found: dict[str, Any] = {
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
        target, draft = map(_curve, costs)
        found["predicted_speedup"] = round(predicted_speedup(first, target, draft), 3)
    return found


def _runs(engine: Engine, prompts: Sequence[Sequence[int]], modes: Sequence[str]) -> dict[str, Statistics]:
    """All prompts in each mode, added up; the modes take turns, and nothing said before is remembered."""
    totals = {mode: Statistics() for mode in modes}
    for prompt in prompts:
        for mode, total in totals.items():
            engine.forget()
            engine.generate(prompt, mode=mode, max_new_tokens=NEW_TOKENS)
            _add(total, engine.last.statistics)
    return totals


def _add(total: Statistics, one: Statistics) -> None:
    for name in ("new_tokens", "rounds", "drafted", "accepted", "decode_seconds"):
        setattr(total, name, getattr(total, name) + getattr(one, name))
    for name in ("drafted_by_position", "accepted_by_position"):
        ours, theirs = getattr(total, name), getattr(one, name)
        ours.extend([0] * (len(theirs) - len(ours)))
        ours[: len(theirs)] = [a + b for a, b in zip(ours, theirs, strict=False)]


def _share(part: Sequence[int], whole: Sequence[int]) -> float:
    return sum(part) / sum(whole) if sum(whole) else 0.0


def _curve(costs: Mapping[str, float]) -> Curve:
    widths = sorted(int(key) for key in costs)
    return Curve(tuple(widths), tuple(costs[str(width)] for width in widths))
