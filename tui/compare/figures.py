"""From what the processes reported to the figures of each setup."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from specdec_onnx.tui.compare.setups import Outcome, Setup

TIMES = ("first_token_ms", "prefill_ms", "per_token_ms")


def setup_figures(setup: Setup, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One setup over all repeats: medians of its times, and in `problem` why it did not finish, if so."""
    loaded = [outcome.loaded for outcome in outcomes if outcome.loaded]
    finished = [outcome.finished for outcome in outcomes if outcome.finished]
    peaks = [each["peak_memory_bytes"] for each in finished if each["peak_memory_bytes"]]
    first = loaded[0] if loaded else {}
    return {
        "device": setup.device,
        "draft_device": setup.draft_device,
        "threads": setup.threads or None,
        "problem": next((outcome.problem for outcome in outcomes if outcome.problem), None),
        "runs_on": first.get("devices", {}),
        "identity": first.get("identity"),
        "nodes": first.get("nodes", {}),
        "load_seconds": round(min(each["load_seconds"] for each in loaded), 2) if loaded else None,
        "peak_memory_bytes": max(peaks) if peaks else None,
        "forward_cost_ms": finished[-1]["forward_cost_ms"] if finished else {},
        "lengths": _lengths([run for outcome in outcomes for run in outcome.runs]),
    }


def _lengths(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each prompt length the figures of each mode, shortest first."""
    result = []
    for length in sorted({run["length"] for run in runs}):
        of_length = [run for run in runs if run["length"] == length]
        modes = dict.fromkeys(run["mode"] for run in of_length)
        result.append(
            {
                "length": length,
                "prompt_tokens": of_length[0]["prompt_tokens"],
                "modes": {mode: _mode(mode, of_length) for mode in modes},
            }
        )
    return result


def _mode(mode: str, of_length: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One mode's figures from the runs of all modes at one prompt length."""
    runs = [run for run in of_length if run["mode"] == mode]
    plain = next((run["tokens"] for run in of_length if run["mode"] == "plain"), None)
    per_token = [run["per_token_ms"] for run in runs]
    return {
        **{name: round(median(run[name] for run in runs), 3) for name in TIMES},
        "spread": [round(min(per_token), 3), round(max(per_token), 3)] if len(runs) > 1 else None,
        "new_tokens": len(runs[0]["tokens"]),
        "identical_to_plain": None if plain is None else all(run["tokens"] == plain for run in runs),
    }


def plain_times(outcomes: Mapping[str, Sequence[Outcome]]) -> list[list[float]]:
    """Milliseconds of a token of plain decoding: one list of repeats for each setup and prompt length."""
    times: dict[tuple[str, int], list[float]] = {}
    for name, each in outcomes.items():
        for run in (run for outcome in each for run in outcome.runs if run["mode"] == "plain"):
            times.setdefault((name, run["length"]), []).append(run["per_token_ms"])
    return list(times.values())


def nodes_text(setup: Mapping[str, Any]) -> str:
    """`target 312 CPU; draft 268 CPU`: how many nodes of each graph run on which provider."""
    parts = []
    for role, counts in setup["nodes"].items():
        listed = ", ".join(
            f"{count} {name.removesuffix('ExecutionProvider')}" for name, count in counts.items()
        )
        parts.append(f"{role} {listed}")
    return "; ".join(parts) or "–"
