"""From what the places' processes told to the figures of the report."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from specdec_onnx.tui.bench.noise import unsteadiness
from specdec_onnx.tui.compare.runner import Outcome
from specdec_onnx.tui.compare.spec import Place

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
