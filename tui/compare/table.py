"""A comparison's figures as tables for a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specdec_onnx.tui.bench.figures import columns, titled, warning_lines
from specdec_onnx.tui.chat.inventory import gigabytes
from specdec_onnx.tui.compare.figures import choice_line, crossover_lines, energy_line, nodes_text


def tables(report: Mapping[str, Any]) -> RenderableType:
    """Places, their times by prompt length and mode, uses, crossovers, and the choice."""
    parts: list[RenderableType] = [_places(report), _times(report)]
    if report["choice"]:
        parts += [_uses(report), _crossovers(report)]
    return Group(*parts, *_notes(report))


def _places(report: Mapping[str, Any]) -> RenderableType:
    table = columns("place", "loads in", "peak memory", "speculative output")
    table.add_column("runs on")
    for name, place in report["places"].items():
        memory = place["peak_memory_bytes"]
        table.add_row(
            name,
            "–" if place["load_seconds"] is None else f"{place['load_seconds']:.1f} s",
            gigabytes(memory) if memory else "–",
            place["identity"] or "–",
            nodes_text(place),
        )
    problems = [
        Text(f"{name}: {place['problem']}", style="yellow")
        for name, place in report["places"].items()
        if place["problem"]
    ]
    return Group(titled(f"{report['pair']['name']}, in each place", table), *problems)


def _times(report: Mapping[str, Any]) -> RenderableType:
    energy = report["energy"]["counted"]
    table = columns(
        "place", "mode", "prompt", "first token", "per token", "tok/s", *(["J/token"] if energy else [])
    )
    for name, place in report["places"].items():
        for each in place["lengths"]:
            for mode, figures in each["modes"].items():
                table.add_row(
                    name,
                    mode,
                    str(each["prompt_tokens"]),
                    f"{figures['first_token_ms']:.0f} ms",
                    _per_token(figures),
                    f"{1e3 / figures['per_token_ms']:.1f}",
                    *([f"{figures['joules_per_token'] or 0:.2f}"] if energy else []),
                )
    return titled("latency by prompt length and mode", table)


def _per_token(figures: Mapping[str, Any]) -> str:
    middle = f"{figures['per_token_ms']:.1f} ms"
    if not figures["spread"]:
        return middle
    low, high = figures["spread"]
    return f"{middle} ({low:.0f}–{high:.0f})"


def _uses(report: Mapping[str, Any]) -> RenderableType:
    most = max(map(len, report["uses"].values()))
    table = columns("use", *(f"{number}." for number in range(1, 1 + most)))
    for use, ranking in report["uses"].items():
        name, _, lengths = use.partition(" (")
        table.add_row(
            f"{name}\n({lengths}", *(f"{each['place']}\n{each['seconds']:.1f} s" for each in ranking)
        )
    return titled("seconds to the end of the answer", table)


def _crossovers(report: Mapping[str, Any]) -> RenderableType:
    return Group(
        Text(),
        Text("where they cross", style="bold"),
        *map(Text, crossover_lines(report)),
        Text(),
        Text(choice_line(report), style="bold"),
    )


def _notes(report: Mapping[str, Any]) -> list[Text]:
    return [Text(), Text(energy_line(report), style="dim"), *warning_lines(report["noise"]["warnings"])]
