"""Which setup to choose: the fastest for each use, where setups cross, and the verdict, also in words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def verdict(setups: Setups, lengths: Sequence[int]) -> dict[str, Any]:
    """The report's `uses`, `crossovers` and `choice`; `choice` is None if nothing was measured."""
    measured = [length for length in lengths if lines(setups, length, 1)]
    if not measured:
        return {"uses": {}, "crossovers": {"by_answer": [], "first_token": []}, "choice": None}
    short, long = measured[0], measured[-1]
    kinds = (
        ("a quick reply", short, 30),
        ("a long answer", short, 300),
        ("a question about a long text", long, 100),
    )
    uses = {
        f"{name} ({prompt} tokens in, {answer} out)": _ranking(setups, prompt, answer)
        for name, prompt, answer in kinds
    }
    return {
        "uses": {
            name: [each | {"seconds": round(each["seconds"], 3)} for each in ranking]
            for name, ranking in uses.items()
        },
        "crossovers": {
            "by_answer": [_by_answer(setups, length) for length in measured],
            "first_token": first_token_crossings(setups),
        },
        "choice": _choice(setups, list(uses.values())),
    }


def _ranking(setups: Setups, prompt: int, answer: int) -> list[dict[str, Any]]:
    """The setups from the fastest on, for one use."""
    ranked = sorted(lines(setups, prompt, answer), key=lambda line: line.seconds(answer))
    return [{"setup": line.setup, "mode": line.mode, "seconds": line.seconds(answer)} for line in ranked]


def _by_answer(setups: Setups, length: int) -> dict[str, Any]:
    segments = [
        {"from_tokens": start, "setup": line.setup, "mode": line.mode}
        for start, line in fastest_by_answer(lines(setups, length, 100))
    ]
    return {"length": length, "segments": segments}


def _choice(setups: Setups, rankings: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The setup with the best geometric mean over the uses, among those that were measured for all of them."""
    slowness: dict[str, float] = {}
    for name in setups:
        own = [(each, ranking[0]) for ranking in rankings for each in ranking if each["setup"] == name]
        if len(own) == len(rankings):
            slowness[name] = geometric_mean(each["seconds"] / fastest["seconds"] for each, fastest in own)
    best, *others = sorted(slowness, key=slowness.__getitem__)
    modes = [each["mode"] for ranking in rankings for each in ranking if each["setup"] == best]
    choice = {"setup": best, "mode": Counter(modes).most_common(1)[0][0]}
    if not others:
        alone = {"runner_up": None, "times_as_fast": None, "close": False}
        return choice | alone | {"why": "no other device was measured"}
    second = others[0]
    ratio, doubt = slowness[second] / slowness[best], max(CLOSE, _spread(setups, best, second))
    lead = {"runner_up": second, "times_as_fast": round(ratio, 2), "close": ratio - 1 < doubt}
    return choice | lead | {"why": _why(setups, best, second, ratio, doubt)}


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


def _why(setups: Setups, best: str, second: str, ratio: float, doubt: float) -> str:
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
    tokens = np.arange(1, MOST_TOKENS + 1)
    times = [line.prefill_ms + tokens * line.per_token_ms for line in candidates]
    return [(1 + at, candidates[least]) for at, least in _least(times)]


def first_token_crossings(setups: Setups) -> list[dict[str, Any]]:
    """From which prompt length on each setup gives the first token soonest, in its quickest mode.

    Times are interpolated between the lengths that all setups measured.
    """
    curves = {
        name: {
            each["prompt_tokens"]: min(mode["first_token_ms"] for mode in each["modes"].values())
            for each in setup["lengths"]
        }
        for name, setup in setups.items()
        if setup["lengths"]
    }
    shared = sorted(set.intersection(*map(set, curves.values()))) if curves else []
    if not shared:
        return []
    tokens = range(shared[0], shared[-1] + 1)
    times = [np.interp(tokens, shared, [curve[at] for at in shared]) for curve in curves.values()]
    names = list(curves)
    return [{"from_prompt_tokens": tokens[at], "setup": names[least]} for at, least in _least(times)]


def _least(rows: Sequence[NDArray[np.floating[Any]]]) -> list[tuple[int, int]]:
    """Which row is the least, from which column on."""
    least = np.argmin(rows, axis=0)
    return [(int(at), int(least[at])) for at in (0, *(np.flatnonzero(np.diff(least)) + 1))]


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
    if crossovers["first_token"]:
        first, *later = crossovers["first_token"]
        others = [f"{each['setup']} from prompts of {each['from_prompt_tokens']} tokens on" for each in later]
        words = ", ".join([f"{first['setup']} first", *others]) if later else f"always {first['setup']}"
        lines.append(f"first token: {words}")
    return lines


def _segments(segments: Sequence[Mapping[str, Any]]) -> str:
    first, *later = segments
    name = f"{first['setup']} ({first['mode']})"
    if not later:
        return f"{name} is the fastest, however long the answer"
    others = (f"{each['setup']} ({each['mode']}) from {each['from_tokens']} tokens on" for each in later)
    return f"{name} is the fastest for the shortest answers, {', '.join(others)}"
