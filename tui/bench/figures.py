"""From runs to the figures of the report, and the figures as tables."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_onnx.models.text import gigabytes, percent, times
from specdec_onnx.tui.bench.runs import Round, Run, mode_name

POSITIONS = 8
"""Positions in the draft that the table shows."""


def summarize(
    rounds: Sequence[Round], names: Iterable[str], *, comparable: bool
) -> dict[str, dict[str, Any]]:
    """The figures of each contestant in `names`, the first of which is the plain one.

    Rates are total tokens over total seconds; ratios are against plain on the same prompts. Of several repeats the
    median counts, and `spread` holds the lowest and the highest. If equal answers are not to be expected
    (`comparable` is False), `identical_to_plain` is None.
    """
    names = list(names)
    return {name: _summary(rounds, name, names[0], comparable) for name in names}


def identical(round_: Round, name: str, other: str) -> bool:
    """Whether every run of `name` gave the tokens of the first run of `other`."""
    return all(run.tokens == round_[other][0].tokens for run in round_[name])


def decode_rate(runs: Sequence[Run]) -> float:
    """Decoded tokens per second over all runs."""
    return _ratio(_total(runs, "new_tokens"), _total(runs, "decode_seconds"))


def end_to_end_rate(runs: Sequence[Run]) -> float:
    """Tokens per second over all runs, the time for the prompts included."""
    seconds = _total(runs, "prefill_seconds") + _total(runs, "decode_seconds")
    return _ratio(_total(runs, "new_tokens"), seconds)


def first_token(runs: Sequence[Run]) -> float:
    """Milliseconds to the first token, the median over the prompts."""
    return median(run.turns[0].time_to_first_token_ms for run in runs)


def kernel_ratios(
    figures: Mapping[str, Mapping[str, Any]], modes: Iterable[str], kernels: str
) -> dict[str, float]:
    """How many times as fast each of our modes decodes as with other `kernels`."""
    rate = "decode_tokens_per_second"
    return {
        mode: round(_ratio(figures[mode][rate], figures[mode_name(mode, kernels)][rate]), 3) for mode in modes
    }


RATES: dict[str, Callable[[Sequence[Run]], float]] = {
    "decode_tokens_per_second": decode_rate,
    "end_to_end_tokens_per_second": end_to_end_rate,
    "time_to_first_token_ms": first_token,
}
SECONDS = ("decode_seconds", "prefill_seconds", "draft_seconds", "verify_seconds", "host_seconds")


def _summary(rounds: Sequence[Round], name: str, plain: str, comparable: bool) -> dict[str, Any]:
    repeats = _repeats(rounds, name)
    by_category: dict[str, list[Round]] = {}
    for round_ in rounds:
        by_category.setdefault(round_[name][0].category, []).append(round_)
    return {
        **{key: round(median(map(rate, repeats)), 3) for key, rate in RATES.items()},
        **_acceptance([run for runs in repeats for run in runs]),
        "speedup": {
            "overall": round(median(_speedups(rounds, name, plain)), 3),
            "by_category": {
                category: round(median(_speedups(part, name, plain)), 3)
                for category, part in by_category.items()
            },
        },
        "identical_to_plain": sum(identical(each, name, plain) for each in rounds) if comparable else None,
        "spread": _spread(rounds, name, plain) if len(repeats) > 1 else None,
        "new_tokens": int(median(_total(runs, "new_tokens") for runs in repeats)),
        **{part: round(median(_total(runs, part) for runs in repeats), 4) for part in SECONDS},
    }


def _acceptance(runs: Sequence[Run]) -> dict[str, Any]:
    """The accepted share of the drafted tokens: overall, by position in the draft, and by who drafted them."""
    drafted, accepted = (
        [sum(column) for column in zip_longest(*_fields(runs, f"{which}_by_position"), fillvalue=0)]
        for which in ("drafted", "accepted")
    )
    by_source, accepted_by_source = Counter[str](), Counter[str]()
    for counts in _fields(runs, "drafted_by_source"):
        by_source.update(counts)
    for counts in _fields(runs, "accepted_by_source"):
        accepted_by_source.update(counts)
    return {
        "tokens_per_round": round(_ratio(_total(runs, "new_tokens"), _total(runs, "rounds")), 3),
        "acceptance_rate": round(_ratio(_total(runs, "accepted"), _total(runs, "drafted")), 4),
        "drafted_by_position": drafted,
        "acceptance_by_position": [round(_ratio(*pair), 4) for pair in zip(accepted, drafted, strict=True)],
        "acceptance_by_source": {
            source: round(accepted_by_source[source] / count, 4) for source, count in by_source.items()
        },
    }


def _spread(rounds: Sequence[Round], name: str, plain: str) -> dict[str, list[float]]:
    """Lowest and highest figure of a repeat."""
    figures = {key: [rate(runs) for runs in _repeats(rounds, name)] for key, rate in RATES.items()}
    figures["speedup"] = _speedups(rounds, name, plain)
    return {key: [round(min(values), 3), round(max(values), 3)] for key, values in figures.items()}


def _speedups(rounds: Sequence[Round], name: str, plain: str) -> list[float]:
    """How many times as fast as plain, for each repeat."""
    both = zip(_repeats(rounds, name), _repeats(rounds, plain), strict=True)
    return [_ratio(decode_rate(runs), decode_rate(baseline)) for runs, baseline in both]


def _repeats(rounds: Sequence[Round], name: str) -> list[tuple[Run, ...]]:
    """The runs of all prompts, for each repeat."""
    return list(zip(*(round_[name] for round_ in rounds), strict=True))


def _fields(runs: Iterable[Run], name: str) -> list[Any]:
    """One field of `Statistics`, of every turn of every run."""
    return [getattr(turn, name) for run in runs for turn in run.turns]


def _total(runs: Iterable[Run], count: str) -> float:
    return sum(run.total(count) for run in runs)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def tables(report: Mapping[str, Any]) -> RenderableType:
    """The report for a terminal: modes, ratios by category, acceptance, time by part, costs, other programs."""
    parts: list[RenderableType] = [_modes(report)]
    if len(_categories(report)) > 1 and any(mode.split()[0] != "plain" for mode in report["modes"]):
        parts.append(_by_category(report))
    if any(figures["drafted_by_position"] for figures in report["modes"].values()):
        parts.append(_by_position(report))
    parts.append(_time_split(report))
    if report["forward_cost_ms"]:
        parts.append(_costs(report["forward_cost_ms"], report.get("kernels", {})))
    parts += [_kernel_ratios(name, each) for name, each in report.get("kernels", {}).items()]
    parts += [_against(name, other, report) for name, other in report.get("against", {}).items()]
    return Group(*parts, *_notes(report))


def titled(title: str, table: Table) -> RenderableType:
    """A table under an empty line and its title."""
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
    modes = [mode for mode in report["modes"] if mode.split()[0] != "plain"]
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
    return titled("share of drafted tokens accepted, by position in the draft", table)


def _time_split(report: Mapping[str, Any]) -> RenderableType:
    table = columns("mode", "draft", "verify", "host")
    for mode, figures in report["modes"].items():
        whole = figures["decode_seconds"] or 1.0
        shares = (figures[f"{part}_seconds"] / whole for part in ("draft", "verify", "host"))
        table.add_row(mode, *map(percent, shares))
    return titled("share of the decoding time", table)


def _costs(costs: Mapping[str, float], others: Mapping[str, Any]) -> RenderableType:
    table = columns("S", *costs)
    table.add_row("ms", *(f"{cost:.1f}" for cost in costs.values()))
    for name, other in others.items():
        table.add_row(f"ms ({name})", *(f"{cost:.1f}" for cost in other["forward_cost_ms"].values()))
    return titled("target pass over S tokens", table)


def _kernel_ratios(name: str, other: Mapping[str, Any]) -> RenderableType:
    table = columns("mode", f"× {name}")
    for mode, ratio in other["speed_ratio"].items():
        table.add_row(mode, times(ratio))
    return titled(f"our kernels against {name}'s", table)


def _against(name: str, other: Mapping[str, Any], report: Mapping[str, Any]) -> RenderableType:
    spread = any(figures["spread"] for figures in other["modes"].values())
    names = ["× its\nplain", "end to\nend", "first\ntoken", "same as\nits plain", "same as\nour plain"]
    table = columns("mode", "tok/s", *(["from–to"] if spread else []), *names)
    for mode, figures in other["modes"].items():
        table.add_row(
            mode,
            *_rates(figures),
            times(figures["speedup"]["overall"]),
            f"{figures['end_to_end_tokens_per_second']:.1f}",
            f"{figures['time_to_first_token_ms']:.0f} ms",
            _verdict(figures["identical_to_plain"], report["prompts"]),
            _verdict(figures["identical_to_ours"], report["prompts"]),
        )
    title = f"{name} {other['version']}, {other['threads']} threads, {other['pair']['name']}"
    title += f" ({other['pair']['target']['format'] or 'format unknown'})"
    if other["speed_ratio"] is not None:
        title += f": auto is {times(other['speed_ratio'])} as fast as its {other['best_mode']}"
    return titled(title, table)


def _notes(report: Mapping[str, Any]) -> list[Text]:
    settings = report["settings"]
    caches = (
        "caches emptied before every answer"
        if settings["caches"] == "emptied"
        else f"prompts in shuffled order (--order-seed {settings['order_seed']}), caches kept between them"
    )
    peak = report["peak_memory_bytes"]
    lines = [*([f"peak memory {gigabytes(peak)}"] if peak else []), caches]
    return [Text(), *(Text(line, style="dim") for line in lines), *warning_lines(report["noise"]["warnings"])]
