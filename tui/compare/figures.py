"""From what the processes reported to the figures of each setup, and the figures as tables."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specdec_onnx.models.text import gigabytes
from specdec_onnx.tui.bench.figures import node_counts, titled, warning_lines
from specdec_onnx.tui.compare.choice import choice_line, crossover_lines
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
    by_length = {
        length: [run for run in runs if run["length"] == length] for length in {run["length"] for run in runs}
    }
    return [
        {
            "length": length,
            "prompt_tokens": same[0]["prompt_tokens"],
            "modes": {mode: _mode(mode, same) for mode in dict.fromkeys(run["mode"] for run in same)},
        }
        for length, same in sorted(by_length.items())
    ]


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


def tables(report: Mapping[str, Any]) -> RenderableType:
    """The setups, their times by prompt length and mode, uses, crossovers, and the choice."""
    parts = [_setups(report), _times(report)]
    if report["choice"]:
        crossings = [Text(), Text("where they cross", style="bold"), *map(Text, crossover_lines(report))]
        parts += [_uses(report["uses"]), *crossings, Text(), Text(choice_line(report), style="bold")]
    return Group(*parts, Text(), *warning_lines(report["noise"]["warnings"]))


def _setups(report: Mapping[str, Any]) -> RenderableType:
    setups = report["setups"]
    rows = (
        [
            name,
            "–" if setup["load_seconds"] is None else f"{setup['load_seconds']:.1f} s",
            gigabytes(setup["peak_memory_bytes"]) if setup["peak_memory_bytes"] else "–",
            setup["identity"] or "–",
            nodes_text(setup),
        ]
        for name, setup in setups.items()
    )
    names = ["device", "loads in", "peak memory", "speculative output"]
    table = titled(f"{report['pair']['name']}, on each device", names, rows, words=["graph nodes"])
    problems = {name: setup["problem"] for name, setup in setups.items() if setup["problem"]}
    return Group(table, *(Text(f"{name}: {problem}", style="yellow") for name, problem in problems.items()))


def _times(report: Mapping[str, Any]) -> RenderableType:
    rows = (
        [
            name,
            mode,
            str(each["prompt_tokens"]),
            f"{figures['first_token_ms']:.0f} ms",
            _per_token(figures),
            f"{1e3 / figures['per_token_ms']:.1f}",
        ]
        for name, setup in report["setups"].items()
        for each in setup["lengths"]
        for mode, figures in each["modes"].items()
    )
    names = ["device", "mode", "prompt", "first token", "per token", "tok/s"]
    return titled("latency by prompt length and mode", names, rows)


def _per_token(figures: Mapping[str, Any]) -> str:
    middle = f"{figures['per_token_ms']:.1f} ms"
    if not figures["spread"]:
        return middle
    low, high = figures["spread"]
    return f"{middle} ({low:.0f}–{high:.0f})"


def _uses(uses: Mapping[str, Sequence[Mapping[str, Any]]]) -> RenderableType:
    ranks = (f"{number}." for number in range(1, 1 + max(map(len, uses.values()))))
    rows = (
        [use.replace(" (", "\n(", 1), *(f"{each['setup']}\n{each['seconds']:.1f} s" for each in ranking)]
        for use, ranking in uses.items()
    )
    return titled("seconds to the end of the answer", ["use", *ranks], rows)


def nodes_text(setup: Mapping[str, Any]) -> str:
    """`target 312 CPU; draft 268 CPU`: how many nodes of each graph run on which provider."""
    return "; ".join(f"{role} {node_counts(counts)}" for role, counts in setup["nodes"].items()) or "–"
