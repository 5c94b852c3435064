"""Which setup to choose: the fastest for each use, where setups cross, and the verdict, also in words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np

from specdec_onnx.models.text import percent, times

MOST_TOKENS = 4096
"""The longest answer that is considered."""

CLOSE = 0.1
"""A lead of a smaller share is unclear; so is one smaller than the differences between repeats."""

Setups = Mapping[str, Mapping[str, Any]]
"""The figures of each setup, by name."""


@dataclass(frozen=True, slots=True)
class Line:
    """The time of an answer by its length, in one setup and mode, after a prompt of one length."""

    setup: str
    mode: str
    prefill_ms: float
    per_token_ms: float

    def seconds(self, tokens: float) -> float:
        """How long an answer of that many tokens takes, reading the prompt included."""
        return (self.prefill_ms + tokens * self.per_token_ms) / 1e3


Ranking = Sequence[tuple[Line, int]]
"""Setups from the fastest on, with the length of the answer."""


def verdict(setups: Setups, lengths: Sequence[int]) -> dict[str, Any]:
    """The report's `uses`, `crossovers` and `choice`; `choice` is None if nothing was measured."""
    measured = [length for length in lengths if lines(setups, length, 1)]
    if not measured:
        return {"uses": {}, "crossovers": {"by_answer": [], "first_token": []}, "choice": None}
    rankings = {name: _ranking(setups, *tokens) for name, tokens in uses(measured).items()}
    return {
        "uses": {name: [_entry(*each) for each in ranking] for name, ranking in rankings.items()},
        "crossovers": {
            "by_answer": [_by_answer(setups, length) for length in measured],
            "first_token": first_token_crossings(setups),
        },
        "choice": _choice(setups, list(rankings.values())),
    }


def uses(lengths: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Kinds of use, each with the length of prompt and answer."""
    kinds = {
        "a quick reply": (lengths[0], 30),
        "a long answer": (lengths[0], 300),
        "a question about a long text": (lengths[-1], 100),
    }
    return {
        f"{name} ({prompt} tokens in, {answer} out)": (prompt, answer)
        for name, (prompt, answer) in kinds.items()
    }


def _ranking(setups: Setups, prompt: int, answer: int) -> Ranking:
    ranked = sorted(lines(setups, prompt, answer), key=lambda line: line.seconds(answer))
    return [(line, answer) for line in ranked]


def _entry(line: Line, answer: int) -> dict[str, Any]:
    return {"setup": line.setup, "mode": line.mode, "seconds": round(line.seconds(answer), 3)}


def _by_answer(setups: Setups, length: int) -> dict[str, Any]:
    segments = fastest_by_answer(lines(setups, length, 100))
    return {
        "length": length,
        "segments": [
            {"from_tokens": start, "setup": line.setup, "mode": line.mode} for start, line in segments
        ],
    }


def _choice(setups: Setups, rankings: Sequence[Ranking]) -> dict[str, Any]:
    """The setup with the best geometric mean over the uses, among those that were measured for all of them."""
    slowness: dict[str, float] = {}
    for name in setups:
        ratios = [_ratio(ranking, name) for ranking in rankings]
        if all(ratios):
            slowness[name] = exp(sum(log(ratio) for ratio in ratios if ratio) / len(ratios))
    order = sorted(slowness, key=slowness.__getitem__)
    best, second = order[0], order[1] if len(order) > 1 else None
    ratio = slowness[second] / slowness[best] if second else None
    doubt = max(CLOSE, _spread(setups, best, second)) if second else 0.0
    modes = [line.mode for ranking in rankings for line, _ in ranking if line.setup == best]
    return {
        "setup": best,
        "mode": Counter(modes).most_common(1)[0][0],
        "runner_up": second,
        "times_as_fast": round(ratio, 2) if ratio else None,
        "close": ratio is not None and ratio - 1 < doubt,
        "why": _why(setups, best, second, ratio, doubt),
    }


def _ratio(ranking: Ranking, name: str) -> float | None:
    """How many times as long as the fastest a setup takes; None if it was not measured."""
    own = next((line.seconds(answer) for line, answer in ranking if line.setup == name), None)
    return own / ranking[0][0].seconds(ranking[0][1]) if own else None


def _spread(setups: Setups, *names: str) -> float:
    """The largest share by which repeats of one of the setups differ."""
    spreads = [
        mode["spread"][1] / mode["spread"][0] - 1
        for name in names
        for each in setups[name]["lengths"]
        for mode in each["modes"].values()
        if mode["spread"]
    ]
    return max(spreads, default=0.0)


def _why(setups: Setups, best: str, second: str | None, ratio: float | None, doubt: float) -> str:
    if second is None or ratio is None:
        return "no other device was measured"
    lead = f"over all uses {times(ratio)} as fast as {second}"
    if ratio - 1 < CLOSE:
        return f"{lead}, not a clear lead"
    if ratio - 1 < doubt:
        return f"{lead}, but not a clear lead: repeats of the same work differ by up to {percent(doubt)}"
    parts = [_compared(setups, best, second, key) for key in ("prefill_ms", "per_token_ms")]
    return f"{lead} ({parts[0]} at reading, {parts[1]} at writing)"


def _compared(setups: Setups, best: str, second: str, key: str) -> str:
    """How many times as fast `best` is, at the longest prompt that both have, each in its quickest mode."""
    measured = [setups[name]["lengths"] for name in (best, second)]
    length = max(set.intersection(*({each["length"] for each in lengths} for lengths in measured)))
    quickest = [
        min(mode[key] for each in lengths if each["length"] == length for mode in each["modes"].values())
        for lengths in measured
    ]
    return times(quickest[1] / quickest[0])


def lines(setups: Setups, length: int, answer: int) -> list[Line]:
    """Each setup that was measured at a prompt length, in the mode that is best for `answer` tokens."""
    by_setup = (
        [
            Line(name, mode, figures["prefill_ms"], figures["per_token_ms"])
            for each in setup["lengths"]
            if each["length"] == length
            for mode, figures in each["modes"].items()
        ]
        for name, setup in setups.items()
    )
    return [min(modes, key=lambda line: line.seconds(answer)) for modes in by_setup if modes]


def fastest_by_answer(candidates: Sequence[Line]) -> list[tuple[int, Line]]:
    """The fastest line for each range of answer lengths: (first length in tokens, line), up to MOST_TOKENS."""
    tokens, segments = 1, [(1, min(candidates, key=lambda line: line.seconds(1)))]
    while crossing := _next_crossing(segments[-1][1], candidates, tokens):
        tokens = crossing[0]
        segments.append(crossing)
    return segments


def _next_crossing(lowest: Line, candidates: Sequence[Line], after: int) -> tuple[int, Line] | None:
    """Where a line that rises more slowly first gets below `lowest`."""
    crossings = []
    for line in candidates:
        if line.per_token_ms < lowest.per_token_ms:
            tokens = (line.prefill_ms - lowest.prefill_ms) / (lowest.per_token_ms - line.per_token_ms)
            crossings.append((max(after + 1, int(tokens) + 1), line))
    first = min(
        crossings, key=lambda each: (each[0], each[1].seconds(each[0]), each[1].per_token_ms), default=None
    )
    return first if first and first[0] <= MOST_TOKENS else None


def first_token_crossings(setups: Setups) -> list[dict[str, Any]]:
    """From which prompt length on each setup gives the first token soonest, in its quickest mode.

    Times are interpolated between the lengths that all setups measured.
    """
    curves = {name: _first_tokens(setup) for name, setup in setups.items() if setup["lengths"]}
    measured = [set(curve) for curve in curves.values()]
    shared = sorted(set.intersection(*measured)) if measured else []
    crossings: list[dict[str, Any]] = []
    for tokens in range(shared[0], shared[-1] + 1) if shared else ():
        seconds = {
            name: np.interp(tokens, shared, [curve[each] for each in shared])
            for name, curve in curves.items()
        }
        best = min(seconds, key=seconds.__getitem__)
        if not crossings or crossings[-1]["setup"] != best:
            crossings.append({"from_prompt_tokens": tokens, "setup": best})
    return crossings


def _first_tokens(setup: Mapping[str, Any]) -> dict[int, float]:
    return {
        each["prompt_tokens"]: min(mode["first_token_ms"] for mode in each["modes"].values())
        for each in setup["lengths"]
    }


def choice_line(report: Mapping[str, Any]) -> str:
    """`Choose cpu, mode auto: …`, or that nothing was measured."""
    choice = report["choice"]
    if choice is None:
        return "No device could be measured."
    return f"Choose {choice['setup']}, mode {choice['mode']}: {choice['why']}."


def crossover_lines(report: Mapping[str, Any]) -> list[str]:
    """From which answer length on which setup is the fastest, for each prompt length; then for the first token."""
    crossovers = report["crossovers"]
    lines = [
        f"{each['length']}-token prompt: {_segments(each['segments'])}" for each in crossovers["by_answer"]
    ]
    if first := crossovers["first_token"]:
        parts = [f"{first[0]['setup']} first"] + [
            f"{each['setup']} from prompts of {each['from_prompt_tokens']} tokens on" for each in first[1:]
        ]
        lines.append(
            "first token: " + (", ".join(parts) if len(parts) > 1 else f"always {first[0]['setup']}")
        )
    return lines


def _segments(segments: list[Mapping[str, Any]]) -> str:
    names = [f"{each['setup']} ({each['mode']})" for each in segments]
    if len(names) == 1:
        return f"{names[0]} is the fastest, however long the answer"
    later = [
        f"{name} from {each['from_tokens']} tokens on"
        for name, each in zip(names[1:], segments[1:], strict=True)
    ]
    return f"{names[0]} is the fastest for the shortest answers, {', '.join(later)}"
