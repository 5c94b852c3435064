"""From what the places' processes told to the figures of the report."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Any

from specdec_onnx.tui.bench.machine import unsteadiness
from specdec_onnx.tui.compare.places import Outcome, Place
from specdec_onnx.tui.text import percent, times

Figures = dict[str, Any]
TIMES = ("first_token_ms", "prefill_ms", "per_token_ms")


def place_figures(place: Place, outcomes: Sequence[Outcome]) -> Figures:
    """One place over all repeats: medians of its times, and what it lacks in `problem` (None where nothing is)."""
    loaded = [outcome.loaded for outcome in outcomes if outcome.loaded]
    finished = [outcome.finished for outcome in outcomes if outcome.finished]
    peaks = [each["peak_memory_bytes"] for each in finished if each["peak_memory_bytes"]]
    first = loaded[0] if loaded else {}
    return {
        "device": place.device,
        "draft_device": place.draft_device,
        "threads": place.threads or None,
        "problem": next((outcome.problem for outcome in outcomes if outcome.problem), None),
        "runs_on": first.get("devices", {}),
        "identity": first.get("identity"),
        "nodes": first.get("nodes", {}),
        "load_seconds": round(min(each["load_seconds"] for each in loaded), 2) if loaded else None,
        "peak_memory_bytes": max(peaks) if peaks else None,
        "forward_cost_ms": finished[-1]["forward_cost_ms"] if finished else {},
        "lengths": _lengths([run for outcome in outcomes for run in outcome.runs]),
    }


def _lengths(runs: Sequence[Mapping[str, Any]]) -> list[Figures]:
    """For each prompt length the figures of each mode, shortest first."""
    found = []
    for length in sorted({run["length"] for run in runs}):
        here = [run for run in runs if run["length"] == length]
        modes = list(dict.fromkeys(run["mode"] for run in here))
        found.append(
            {
                "length": length,
                "prompt_tokens": here[0]["prompt_tokens"],
                "modes": {mode: _mode([run for run in here if run["mode"] == mode], here) for mode in modes},
            }
        )
    return found


def _mode(runs: Sequence[Mapping[str, Any]], all_modes: Sequence[Mapping[str, Any]]) -> Figures:
    plain = next((run["tokens"] for run in all_modes if run["mode"] == "plain"), None)
    joules = [run["joules"] / len(run["tokens"]) for run in runs if run["joules"] is not None]
    per_token = [run["per_token_ms"] for run in runs]
    return {
        **{name: round(median(run[name] for run in runs), 3) for name in TIMES},
        "spread": [round(min(per_token), 3), round(max(per_token), 3)] if len(runs) > 1 else None,
        "new_tokens": len(runs[0]["tokens"]),
        "identical_to_plain": None if plain is None else all(run["tokens"] == plain for run in runs),
        "joules_per_token": round(median(joules), 3) if joules else None,
    }


def plain_spread(outcomes: Mapping[str, Sequence[Outcome]]) -> float | None:
    """How far repeats of the same plain decoding lie apart, over all places; None without repeats."""
    times: dict[tuple[str, int], list[float]] = {}
    for name, each in outcomes.items():
        for run in (run for outcome in each for run in outcome.runs if run["mode"] == "plain"):
            times.setdefault((name, run["length"]), []).append(run["per_token_ms"])
    return unsteadiness(list(times.values()))


MOST_TOKENS = 4096
"""Longest answer that is looked at."""


@dataclass(frozen=True, slots=True)
class Line:
    """One place in its best mode, behind a prompt of one length; times in milliseconds."""

    place: str
    mode: str
    prefill_ms: float
    per_token_ms: float

    def seconds(self, tokens: float) -> float:
        """How long an answer of that many tokens takes."""
        return (self.prefill_ms + tokens * self.per_token_ms) / 1e3


def lines(places: Mapping[str, Mapping[str, Any]], length: int, answer: int) -> list[Line]:
    """The places that were measured at a prompt length, each in the mode that is best for `answer` tokens."""
    found = []
    for name, place in places.items():
        modes: Mapping[str, Any] = next(
            (each["modes"] for each in place["lengths"] if each["length"] == length), {}
        )
        here = [Line(name, mode, each["prefill_ms"], each["per_token_ms"]) for mode, each in modes.items()]
        if here:
            found.append(min(here, key=lambda line: line.seconds(answer)))
    return found


def fastest_by_answer(candidates: Sequence[Line]) -> list[tuple[int, Line]]:
    """From which answer length on each line is the lowest: (first number of tokens, line), up to MOST_TOKENS."""
    tokens, segments = 1, [(1, min(candidates, key=lambda line: line.seconds(1)))]
    while crossing := _next_crossing(segments[-1][1], candidates, tokens):
        tokens = crossing[0]
        segments.append(crossing)
    return segments


def _next_crossing(now: Line, candidates: Sequence[Line], after: int) -> tuple[int, Line] | None:
    """Where a line that rises more slowly first gets below `now`."""
    found = []
    for line in candidates:
        if line.per_token_ms < now.per_token_ms:
            crossing = (line.prefill_ms - now.prefill_ms) / (now.per_token_ms - line.per_token_ms)
            found.append((max(after + 1, int(crossing) + 1), line))
    first = min(
        found, key=lambda each: (each[0], each[1].seconds(each[0]), each[1].per_token_ms), default=None
    )
    return first if first and first[0] <= MOST_TOKENS else None


def first_token_crossings(places: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """From which prompt length on each place has the first token soonest, in its quickest mode.

    Between measured lengths the times are taken to be linear; only lengths that all places measured count.
    """
    curves = {name: _first_tokens(place) for name, place in places.items() if place["lengths"]}
    measured = [set(curve) for curve in curves.values()]
    shared = sorted(set.intersection(*measured)) if measured else []
    found: list[dict[str, Any]] = []
    for tokens in range(shared[0], shared[-1] + 1) if shared else ():
        best = min(curves, key=lambda name: _between(curves[name], shared, tokens))
        if not found or found[-1]["place"] != best:
            found.append({"from_prompt_tokens": tokens, "place": best})
    return found


def _first_tokens(place: Mapping[str, Any]) -> dict[int, float]:
    return {
        each["prompt_tokens"]: min(mode["first_token_ms"] for mode in each["modes"].values())
        for each in place["lengths"]
    }


def _between(curve: Mapping[int, float], shared: Sequence[int], tokens: int) -> float:
    import numpy as np

    return float(np.interp(tokens, shared, [curve[each] for each in shared]))


CLOSE = 0.1
"""A lead of less than this share is called unclear, or one of less than repeats of the same work differ by."""

Places = Mapping[str, Mapping[str, Any]]
Ranking = Sequence[tuple[Line, int]]
"""Places from the fastest on, with the answer's length."""


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


def verdict(places: Places, lengths: Sequence[int]) -> dict[str, Any]:
    """The report's `uses`, `crossovers` and `choice`; `choice` is None where nothing was measured."""
    measured = [length for length in lengths if lines(places, length, 1)]
    if not measured:
        return {"uses": {}, "crossovers": {"by_answer": [], "first_token": []}, "choice": None}
    found = {name: _ranking(places, *lengths_) for name, lengths_ in uses(measured).items()}
    return {
        "uses": {name: [_entry(line, answer) for line, answer in ranking] for name, ranking in found.items()},
        "crossovers": {
            "by_answer": [_by_answer(places, length) for length in measured],
            "first_token": first_token_crossings(places),
        },
        "choice": _choice(places, list(found.values())),
    }


def _ranking(places: Places, prompt: int, answer: int) -> Ranking:
    found = sorted(lines(places, prompt, answer), key=lambda line: line.seconds(answer))
    return [(line, answer) for line in found]


def _entry(line: Line, answer: int) -> dict[str, Any]:
    return {"place": line.place, "mode": line.mode, "seconds": round(line.seconds(answer), 3)}


def _by_answer(places: Places, length: int) -> dict[str, Any]:
    segments = fastest_by_answer(lines(places, length, 100))
    return {
        "length": length,
        "segments": [
            {"from_tokens": start, "place": line.place, "mode": line.mode} for start, line in segments
        ],
    }


def _choice(places: Places, rankings: Sequence[Ranking]) -> dict[str, Any]:
    """The place with the best geometric mean over the uses, among those that were measured for all of them."""
    slowness: dict[str, float] = {}
    for name in places:
        ratios = [_ratio(ranking, name) for ranking in rankings]
        if all(ratios):
            slowness[name] = exp(sum(log(ratio) for ratio in ratios if ratio) / len(ratios))
    order = sorted(slowness, key=slowness.__getitem__)
    best, second = order[0], order[1] if len(order) > 1 else None
    ratio = slowness[second] / slowness[best] if second else None
    doubt = max(CLOSE, _spread(places, best, second)) if second else 0.0
    modes = [line.mode for ranking in rankings for line, _ in ranking if line.place == best]
    return {
        "place": best,
        "mode": Counter(modes).most_common(1)[0][0],
        "runner_up": second,
        "times_as_fast": round(ratio, 2) if ratio else None,
        "close": ratio is not None and ratio - 1 < doubt,
        "why": _why(places, best, second, ratio, doubt),
    }


def _ratio(ranking: Ranking, name: str) -> float | None:
    """How many times as long as the fastest a place takes; None if it was not measured."""
    own = next((line.seconds(answer) for line, answer in ranking if line.place == name), None)
    return own / ranking[0][0].seconds(ranking[0][1]) if own else None


def _spread(places: Places, *names: str) -> float:
    """The largest share by which repeats of one of the places differ."""
    spreads = [
        mode["spread"][1] / mode["spread"][0] - 1
        for name in names
        for each in places[name]["lengths"]
        for mode in each["modes"].values()
        if mode["spread"]
    ]
    return max(spreads, default=0.0)


def _why(places: Places, best: str, second: str | None, ratio: float | None, doubt: float) -> str:
    if second is None or ratio is None:
        return "no other place was measured"
    lead = f"over all uses {times(ratio)} as fast as {second}"
    if ratio - 1 < CLOSE:
        return f"{lead}, which is no clear lead"
    if ratio - 1 < doubt:
        return f"{lead}, but that is no clear lead: repeats of the same work differ by up to {percent(doubt)}"
    parts = [_compared(places, best, second, key) for key in ("prefill_ms", "per_token_ms")]
    return f"{lead} ({parts[0]} in reading, {parts[1]} in writing)"


def _compared(places: Places, best: str, second: str, key: str) -> str:
    """How many times as fast `best` is, at the longest prompt that both have, each in its quickest mode."""
    here, there = (places[name]["lengths"] for name in (best, second))
    length = max({each["length"] for each in here} & {each["length"] for each in there})
    ours, theirs = (
        min(mode[key] for each in place if each["length"] == length for mode in each["modes"].values())
        for place in (here, there)
    )
    return times(theirs / ours)


def choice_line(report: Mapping[str, Any]) -> str:
    """`Choose cpu, mode auto: …`; what is missing where nothing was measured."""
    choice = report["choice"]
    if choice is None:
        return "No place could be measured."
    return f"Choose {choice['place']}, mode {choice['mode']}: {choice['why']}."


def crossover_lines(report: Mapping[str, Any]) -> list[str]:
    """Which place answers soonest from which answer length on, for each prompt length, then the first token's."""
    crossovers = report["crossovers"]
    lines = [
        f"{each['length']}-token prompt: {_segments(each['segments'])}" for each in crossovers["by_answer"]
    ]
    if first := crossovers["first_token"]:
        parts = [f"{first[0]['place']} first"] + [
            f"{each['place']} from {each['from_prompt_tokens']} tokens of prompt on" for each in first[1:]
        ]
        lines.append(
            "first token: " + (", ".join(parts) if len(parts) > 1 else f"always {first[0]['place']}")
        )
    return lines


def _segments(segments: list[Mapping[str, Any]]) -> str:
    names = [f"{each['place']} ({each['mode']})" for each in segments]
    if len(names) == 1:
        return f"{names[0]} is the fastest, however long the answer"
    later = [
        f"{name} from {each['from_tokens']} tokens on"
        for name, each in zip(names[1:], segments[1:], strict=True)
    ]
    return f"{names[0]} is the fastest for the shortest answers, {', '.join(later)}"


def energy_line(report: Mapping[str, Any]) -> str:
    """Whether energy was counted, and why not."""
    energy = report["energy"]
    return f"Energy: {energy['note']}." if energy["counted"] else f"No energy figures: {energy['note']}."


def nodes_text(place: Mapping[str, Any]) -> str:
    """`target 312 CPU; draft 268 CPU`: how many nodes of each graph run where."""
    parts = []
    for role, counts in place["nodes"].items():
        listed = ", ".join(
            f"{count} {name.removesuffix('ExecutionProvider')}" for name, count in counts.items()
        )
        parts.append(f"{role} {listed}")
    return "; ".join(parts) or "–"
