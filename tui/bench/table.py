"""The benchmark's figures as tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_onnx.tui.inventory import gigabytes
from specdec_onnx.tui.wording import percent, times

POSITIONS = 8
"""Positions in the draft that are shown."""


def tables(report: Mapping[str, Any]) -> RenderableType:
    """Modes, then ratios by category, acceptance, time by part, the cost of a target pass, and other programs."""
    parts: list[RenderableType] = [_modes(report)]
    if len(_categories(report)) > 1 and len(report["modes"]) > 1:
        parts.append(_by_category(report))
    if any(figures["drafted_by_position"] for figures in report["modes"].values()):
        parts.append(_by_position(report))
    parts.append(_time_split(report))
    if report["forward_cost_ms"]:
        parts.append(_costs(report["forward_cost_ms"]))
    parts += [_against(name, found, report) for name, found in report.get("against", {}).items()]
    return Group(*parts, *_notes(report))


def titled(title: str, table: Table) -> RenderableType:
    """A table below its title and an empty line."""
    return Group(Text(), Text(title, style="bold"), table)


def columns(*names: str) -> Table:
    """A plain table; all columns but the first are numbers."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left")
    return table


def warning_lines(warnings: Sequence[str]) -> list[Text]:
    """What makes the figures doubtful, one line each."""
    return [Text(f"noisy: {warning}", style="yellow") for warning in warnings]


def _modes(report: Mapping[str, Any]) -> RenderableType:
    count = report["prompts"]
    spread = any(figures["spread"] for figures in report["modes"].values())
    names = ["× plain", "end to\nend", "tok/\nround", "accepted", "first\ntoken", "identical"]
    table = columns("mode", "tok/s", *(["from–to"] if spread else []), *names)
    for mode, figures in report["modes"].items():
        table.add_row(
            mode,
            *_rates(figures),
            times(figures["speedup"]["overall"]),
            f"{figures['end_to_end_tokens_per_second']:.1f}",
            f"{figures['tokens_per_round']:.2f}",
            percent(figures["acceptance_rate"]) if figures["acceptance_rate"] else "–",
            f"{figures['time_to_first_token_ms']:.0f} ms",
            _verdict(figures["identical_to_plain"], count),
        )
    return titled(f"{report['pair']['name']}, {count} prompt{'s' if count > 1 else ''}", table)


def _rates(figures: Mapping[str, Any]) -> list[str]:
    """Tokens per second and, if there were repeats, their lowest and highest."""
    rate = f"{figures['decode_tokens_per_second']:.1f}"
    if not figures["spread"]:
        return [rate]
    low, high = figures["spread"]["decode_tokens_per_second"]
    return [rate, f"{low:.1f}–{high:.1f}"]


def _verdict(same: int | None, count: int) -> Text:
    if same is None:
        return Text("–")
    return Text(f"{same}/{count}", style="green" if same == count else "bold red")


def _categories(report: Mapping[str, Any]) -> list[str]:
    return list(next(iter(report["modes"].values()))["speedup"]["by_category"])


def _by_category(report: Mapping[str, Any]) -> RenderableType:
    modes = [mode for mode in report["modes"] if mode != "plain"]
    table = columns("category", *modes)
    for category in _categories(report):
        ratios = (report["modes"][mode]["speedup"]["by_category"][category] for mode in modes)
        table.add_row(category, *map(times, ratios))
    return titled("× plain by category", table)


def _by_position(report: Mapping[str, Any]) -> RenderableType:
    drafting = {mode: each for mode, each in report["modes"].items() if each["drafted_by_position"]}
    longest = max(len(each["drafted_by_position"]) for each in drafting.values())
    table = columns("mode", *(str(position + 1) for position in range(min(longest, POSITIONS))))
    for mode, each in drafting.items():
        table.add_row(mode, *map(percent, each["acceptance_by_position"][:POSITIONS]))
    return titled("drafted tokens that were kept, by position in the draft", table)


def _time_split(report: Mapping[str, Any]) -> RenderableType:
    table = columns("mode", "draft", "verify", "host")
    for mode, figures in report["modes"].items():
        whole = figures["decode_seconds"] or 1.0
        shares = (figures[f"{part}_seconds"] / whole for part in ("draft", "verify", "host"))
        table.add_row(mode, *map(percent, shares))
    return titled("share of the decoding time", table)


def _costs(costs: Mapping[str, float]) -> RenderableType:
    table = columns("S", *costs)
    table.add_row("ms", *(f"{cost:.1f}" for cost in costs.values()))
    return titled("target pass over S tokens", table)


def _against(name: str, found: Mapping[str, Any], report: Mapping[str, Any]) -> RenderableType:
    spread = any(figures["spread"] for figures in found["modes"].values())
    names = ["× its\nplain", "end to\nend", "first\ntoken", "as its\nplain", "as our\nplain"]
    table = columns("mode", "tok/s", *(["from–to"] if spread else []), *names)
    for mode, figures in found["modes"].items():
        table.add_row(
            mode,
            *_rates(figures),
            times(figures["speedup"]["overall"]),
            f"{figures['end_to_end_tokens_per_second']:.1f}",
            f"{figures['time_to_first_token_ms']:.0f} ms",
            _verdict(figures["identical_to_plain"], report["prompts"]),
            _verdict(figures["identical_to_ours"], report["prompts"]),
        )
    what = f"{found['pair']['name']} ({found['pair']['target']['format'] or 'format unknown'})"
    return titled(f"{name} {found['version']}, {found['threads']} threads, {what}{_ratio_of(found)}", table)


def _ratio_of(found: Mapping[str, Any]) -> str:
    ratio = found["speed_ratio"]
    return "" if ratio is None else f": auto is {times(ratio)} as fast as its {found['best_mode']}"


def _how_asked(settings: Mapping[str, Any]) -> Text:
    if settings["caches"] == "emptied":
        return Text("every answer from empty caches", style="dim")
    seed = settings["order_seed"]
    return Text(f"prompts in shuffled order (--order-seed {seed}), nothing emptied between them", style="dim")


def _notes(report: Mapping[str, Any]) -> list[Text]:
    lines = [_how_asked(report["settings"]), *warning_lines(report["noise"]["warnings"])]
    if peak := report["peak_memory_bytes"]:
        lines.insert(0, Text(f"peak memory {gigabytes(peak)}", style="dim"))
    return [Text(), *lines]
