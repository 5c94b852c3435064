"""The benchmark's figures as tables for a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_onnx.tui.wording import percent, times


def tables(report: Mapping[str, Any]) -> RenderableType:
    """Modes, then the ratio by category, then the cost of a target pass."""
    parts: list[RenderableType] = [_modes(report)]
    if len(_categories(report)) > 1 and len(report["modes"]) > 1:
        parts.append(_by_category(report))
    if report["forward_cost_ms"]:
        parts.append(_costs(report["forward_cost_ms"]))
    return Group(*parts)


def _titled(title: str, table: Table) -> RenderableType:
    return Group(Text(), Text(title, style="bold"), table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table


def _modes(report: Mapping[str, Any]) -> RenderableType:
    count = report["prompts"]
    table = _table("mode", "tok/s", "× plain", "tok/round", "accepted", "first token", "identical")
    for mode, figures in report["modes"].items():
        same = figures["identical_to_plain"]
        table.add_row(
            mode,
            f"{figures['decode_tokens_per_second']:.1f}",
            times(figures["speedup"]["overall"]),
            f"{figures['tokens_per_round']:.2f}",
            percent(figures["acceptance_rate"]) if figures["acceptance_rate"] else "–",
            f"{figures['time_to_first_token_ms']:.0f} ms",
            "–" if same is None else _verdict(same, count),
        )
    return _titled(f"{report['pair']['name']}, {count} prompt{'s' if count > 1 else ''}", table)


def _verdict(same: int, count: int) -> Text:
    return Text(f"{same}/{count}", style="green" if same == count else "bold red")


def _categories(report: Mapping[str, Any]) -> list[str]:
    return list(next(iter(report["modes"].values()))["speedup"]["by_category"])


def _by_category(report: Mapping[str, Any]) -> RenderableType:
    modes = [mode for mode in report["modes"] if mode != "plain"]
    table = _table("category", *modes)
    for category in _categories(report):
        ratios = (report["modes"][mode]["speedup"]["by_category"][category] for mode in modes)
        table.add_row(category, *map(times, ratios))
    return _titled("× plain by category", table)


def _costs(costs: Mapping[str, float]) -> RenderableType:
    table = _table("S", *costs)
    table.add_row("ms", *(f"{cost:.1f}" for cost in costs.values()))
    return _titled("target pass over S tokens", table)
