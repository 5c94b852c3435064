"""What to choose, and why, from the figures of all places."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Any

from specdec_onnx.tui.compare.crossover import Line, fastest_by_answer, first_token_crossings, lines
from specdec_onnx.tui.wording import percent, times

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
