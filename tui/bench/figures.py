"""From runs to the figures of the JSON contract: rates, ratios against plain, and who said the same."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_onnx.tui.bench.runs import Round, Run, by_position, by_source, total
from specdec_onnx.tui.chat.inventory import gigabytes
from specdec_onnx.tui.text import percent, times

Summary = dict[str, Any]
SECONDS = ("decode_seconds", "prefill_seconds", "draft_seconds", "verify_seconds", "host_seconds")


def summarize(rounds: Sequence[Round], names: Iterable[str], *, comparable: bool) -> dict[str, Summary]:
    """The figures of each contestant in `names`, the first of which is the plain one.

    Rates are total tokens over total seconds, ratios are against plain on the same prompts. Of several repeats of all
    prompts the median figure counts, and `spread` holds the lowest and the highest. Where equal answers are not to be
    expected (`comparable` is False), `identical_to_plain` is None.
    """
    names = list(names)
    return {name: _summary(rounds, name, names[0], comparable) for name in names}


def categories(rounds: Iterable[Round]) -> list[str]:
    """The categories that were measured, in the order of the prompts."""
    return list(dict.fromkeys(runs[0].category for round_ in rounds for runs in round_.values()))


def identical(round_: Round, name: str, other: str) -> bool:
    """Whether every run of `name` gave the tokens of the first run of `other`."""
    return all(run.tokens == round_[other][0].tokens for run in round_[name])


def decode_rate(runs: Sequence[Run]) -> float:
    """Decoded tokens per second of all runs together."""
    return _ratio(total(runs, "new_tokens"), total(runs, "decode_seconds"))


def whole_rate(runs: Sequence[Run]) -> float:
    """The same with the time for the prompts."""
    seconds = total(runs, "prefill_seconds") + total(runs, "decode_seconds")
    return _ratio(total(runs, "new_tokens"), seconds)


def first_token(runs: Sequence[Run]) -> float:
    """Milliseconds to the first token of a prompt, the median of the prompts."""
    return median(run.turns[0].time_to_first_token_ms for run in runs)


RATES: dict[str, Callable[[Sequence[Run]], float]] = {
    "decode_tokens_per_second": decode_rate,
    "end_to_end_tokens_per_second": whole_rate,
    "time_to_first_token_ms": first_token,
}


def _summary(rounds: Sequence[Round], name: str, plain: str, comparable: bool) -> Summary:
    repeats = _repeats(rounds, name)
    parts = [[each for each in rounds if each[name][0].category == one] for one in categories(rounds)]
    return {
        **{key: round(median(map(rate, repeats)), 3) for key, rate in RATES.items()},
        **_acceptance([run for runs in repeats for run in runs]),
        "speedup": {
            "overall": round(median(_speedups(rounds, name, plain)), 3),
            "by_category": {
                category: round(median(_speedups(part, name, plain)), 3)
                for category, part in zip(categories(rounds), parts, strict=True)
            },
        },
        "identical_to_plain": sum(identical(each, name, plain) for each in rounds) if comparable else None,
        "spread": _spread(rounds, name, plain) if len(repeats) > 1 else None,
        "new_tokens": int(median(total(runs, "new_tokens") for runs in repeats)),
        **{part: round(median(total(runs, part) for runs in repeats), 4) for part in SECONDS},
    }


def _repeats(rounds: Sequence[Round], name: str) -> list[tuple[Run, ...]]:
    """The runs of all prompts, for each repeat."""
    return list(zip(*(round_[name] for round_ in rounds), strict=True))


def _acceptance(runs: Sequence[Run]) -> Summary:
    """Kept share of the drafted tokens: of all, by their position in the draft, and by who drafted them."""
    drafted, accepted = by_position(runs, "drafted_by_position"), by_position(runs, "accepted_by_position")
    sources, kept = by_source(runs, "drafted_by_source"), by_source(runs, "accepted_by_source")
    return {
        "tokens_per_round": round(_ratio(total(runs, "new_tokens"), total(runs, "rounds")), 3),
        "acceptance_rate": round(_ratio(total(runs, "accepted"), total(runs, "drafted")), 4),
        "drafted_by_position": drafted,
        "acceptance_by_position": [round(_ratio(*pair), 4) for pair in zip(accepted, drafted, strict=True)],
        "acceptance_by_source": {source: round(kept[source] / all_, 4) for source, all_ in sources.items()},
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


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


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
