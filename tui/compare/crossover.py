"""Which place answers soonest, by the lengths of prompt and answer, and where that changes.

An answer of N tokens takes prefill + N times the time of a token: a straight line over N for each place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
