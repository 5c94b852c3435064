"""From runs to the figures of the report, and the figures as tables."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_onnx.models.text import gigabytes, percent, times
from specdec_onnx.runtime.generate import Statistics
from specdec_onnx.tui.bench.runs import Round, Run, mode_name

POSITIONS = 8
"""Positions in the draft that the table shows."""


def summarize(
    rounds: Sequence[Round], names: Iterable[str], *, comparable: bool
) -> dict[str, dict[str, Any]]:
    """The figures of each contestant in `names`, the first of which is the plain one.

    Rates are total tokens over total seconds; ratios are against plain on the same prompts. Of several repeats the
    median counts, and `spread` holds the lowest and the highest; repeats from the cache count for decoding only. If equal
    answers are not to be expected (`comparable` is False), `identical_to_plain` is None.
    """
    names = list(names)
    return {name: _summary(rounds, name, names[0], comparable) for name in names}


def identical(round_: Round, name: str, other: str) -> bool:
    """Whether every run of `name` gave the tokens of the first run of `other`."""
    return all(run.tokens == round_[other][0].tokens for run in round_[name])


def kernel_ratios(
    figures: Mapping[str, Mapping[str, Any]], modes: Iterable[str], kernels: str
) -> dict[str, float]:
    """How many times as fast each of our modes decodes as with other `kernels`."""
    rate = "decode_tokens_per_second"
    return {
        mode: round(_ratio(figures[mode][rate], figures[mode_name(mode, kernels)][rate]), 3) for mode in modes
    }


SECONDS = ("decode_seconds", "draft_seconds", "verify_seconds", "host_seconds")


def _summary(rounds: Sequence[Round], name: str, plain: str, comparable: bool) -> dict[str, Any]:
    repeats = _repeats(rounds, name)
    totals = list(map(_total, repeats))
    read = [runs for runs in repeats if not runs[0].again]
    readings = list(map(_total, read))
    rates = {
        "decode_tokens_per_second": [whole.decode_tokens_per_second for whole in totals],
        "end_to_end_tokens_per_second": [
            _ratio(whole.new_tokens, whole.prefill_seconds + whole.decode_seconds) for whole in readings
        ],
        "prefill_tokens_per_second": [
            _ratio(whole.prompt_tokens - whole.cached_prompt_tokens, whole.prefill_seconds)
            for whole in readings
        ],
        "time_to_first_token_ms": [
            median(run.turns[0].time_to_first_token_ms for run in runs) for runs in read
        ],
    }
    speedups = _speedups(rounds, name, plain)
    by_category: dict[str, list[Round]] = {}
    for round_ in rounds:
        by_category.setdefault(round_[name][0].category, []).append(round_)
    spread = {
        key: [round(min(each), 3), round(max(each), 3)]
        for key, each in (rates | {"speedup": speedups}).items()
    }
    return {
        **{key: round(median(each), 3) for key, each in rates.items()},
        **_acceptance(_total([run for runs in repeats for run in runs])),
        "speedup": {
            "overall": round(median(speedups), 3),
            "by_category": {
                category: round(median(_speedups(part, name, plain)), 3)
                for category, part in by_category.items()
            },
        },
        "identical_to_plain": sum(identical(each, name, plain) for each in rounds) if comparable else None,
        "spread": spread if len(repeats) > 1 else None,
        "new_tokens": int(median(whole.new_tokens for whole in totals)),
        **{part: round(median(getattr(whole, part) for whole in totals), 4) for part in SECONDS},
        "prefill_seconds": round(median(whole.prefill_seconds for whole in readings), 4),
    }


def _acceptance(whole: Statistics) -> dict[str, Any]:
    """The accepted share of the drafted tokens: overall, by position in the draft, and by who drafted them."""
    positions = zip(whole.accepted_by_position, whole.drafted_by_position, strict=True)
    return {
        "tokens_per_round": round(whole.tokens_per_round, 3),
        "acceptance_rate": round(whole.acceptance_rate, 4),
        "drafted_by_position": whole.drafted_by_position,
        "acceptance_by_position": [round(_ratio(*pair), 4) for pair in positions],
        "acceptance_by_source": {
            source: round(whole.accepted_by_source[source] / count, 4)
            for source, count in whole.drafted_by_source.items()
        },
    }


def _speedups(rounds: Sequence[Round], name: str, plain: str) -> list[float]:
    """How many times as fast as plain, for each repeat."""
    ours, theirs = (
        [_total(runs).decode_tokens_per_second for runs in _repeats(rounds, each)] for each in (name, plain)
    )
    return list(map(_ratio, ours, theirs))


def _repeats(rounds: Sequence[Round], name: str) -> list[tuple[Run, ...]]:
    """The runs of all prompts, for each repeat."""
    return list(zip(*(round_[name] for round_ in rounds), strict=True))


def _total(runs: Iterable[Run]) -> Statistics:
    """The sum of the statistics of every turn of every run."""
    return Statistics.total(turn for run in runs for turn in run.turns)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def tables(report: Mapping[str, Any]) -> RenderableType:
    """The report for a terminal: modes, ratios by category, acceptance, time by part, costs, other programs."""
    modes, kernels = report["modes"], report.get("kernels", {})
    parts = [_modes(report)]
    speculating = [mode for mode in modes if mode.split()[0] != "plain"]
    if speculating and len(_ratios(modes[speculating[0]])) > 1:
        parts.append(_by_category({mode: _ratios(modes[mode]) for mode in speculating}))
    if drafting := {mode: each for mode, each in modes.items() if each["drafted_by_position"]}:
        parts.append(_by_position(drafting))
    parts.append(_time_split(modes))
    if costs := report["forward_cost_ms"]:
        measured = {"ms": costs} | {f"ms ({name})": each["forward_cost_ms"] for name, each in kernels.items()}
        rows = ([name, *(f"{cost:.1f}" for cost in each.values())] for name, each in measured.items())
        parts.append(titled("target pass over S tokens", ["S", *costs], rows))
    for name, each in kernels.items():
        rows = ([mode, times(ratio)] for mode, ratio in each["speed_ratio"].items())
        parts.append(titled(f"our kernels against {name}'s", ["mode", f"× {name}"], rows))
    parts += [_against(name, other, report["prompts"]) for name, other in report.get("against", {}).items()]
    return Group(*parts, *_notes(report))


def titled(
    title: str, names: Sequence[str], rows: Iterable[Sequence[RenderableType]], *, words: Sequence[str] = ()
) -> RenderableType:
    """A table under an empty line and its title; all columns but the first are numbers, then come `words`.

    Without names, it has no header.
    """
    table = Table(box=None, pad_edge=False, show_header=bool(names))
    for number, name in enumerate([*names, *words]):
        table.add_column(name, justify="right" if 0 < number < len(names) else "left")
    for row in rows:
        table.add_row(*row)
    return Group(Text(), Text(title, style="bold"), table)


def warning_lines(warnings: Sequence[str]) -> list[Text]:
    """What makes the figures doubtful, one line each."""
    return [Text(f"noisy: {warning}", style="yellow") for warning in warnings]


def node_counts(counts: Mapping[str, int]) -> str:
    """`312 CPU`: how many nodes of a graph run on which provider."""
    return ", ".join(f"{count} {name.removesuffix('ExecutionProvider')}" for name, count in counts.items())


def _modes(report: Mapping[str, Any]) -> RenderableType:
    count, modes = report["prompts"], report["modes"]
    names = [
        "× plain",
        "end to\nend",
        "tok/\nround",
        "accepted",
        "first\ntoken",
        "prompt\ntok/s",
        "identical",
    ]
    rows = (
        [
            times(figures["speedup"]["overall"]),
            f"{figures['end_to_end_tokens_per_second']:.1f}",
            f"{figures['tokens_per_round']:.2f}",
            percent(figures["acceptance_rate"]) if figures["acceptance_rate"] else "–",
            f"{figures['time_to_first_token_ms']:.0f} ms",
            f"{figures['prefill_tokens_per_second']:.0f}",
            _verdict(figures["identical_to_plain"], count),
        ]
        for figures in modes.values()
    )
    return _rated(f"{report['pair']['name']}, {count} prompt{'s' if count > 1 else ''}", modes, names, rows)


def _against(name: str, other: Mapping[str, Any], count: int) -> RenderableType:
    names = [
        "× its\nplain",
        "end to\nend",
        "first\ntoken",
        "prompt\ntok/s",
        "same as\nits plain",
        "same as\nour plain",
    ]
    rows = (
        [
            times(figures["speedup"]["overall"]),
            f"{figures['end_to_end_tokens_per_second']:.1f}",
            f"{figures['time_to_first_token_ms']:.0f} ms",
            f"{figures['prefill_tokens_per_second']:.0f}",
            _verdict(figures["identical_to_plain"], count),
            _verdict(figures["identical_to_ours"], count),
        ]
        for figures in other["modes"].values()
    )
    title = f"{name} {other['version']}, {other['threads']} threads, {other['pair']['name']}"
    title += f" ({other['pair']['target']['format'] or 'format unknown'})"
    if other["speed_ratio"] is not None:
        title += f": auto is {times(other['speed_ratio'])} as fast as its {other['best_mode']}"
    if other["prefill_ratio"] is not None:
        title += f", and reads prompts {times(other['prefill_ratio'])} as fast"
    return _rated(title, other["modes"], names, rows)


def _rated(
    title: str, modes: Mapping[str, Any], names: Sequence[str], rows: Iterable[Sequence[Any]]
) -> RenderableType:
    """A row for each mode, with its rate first and, if there were repeats, the lowest and highest."""
    spread = any(figures["spread"] for figures in modes.values())
    both = zip(modes.items(), rows, strict=True)
    rated = ([mode, *_rates(figures), *row] for (mode, figures), row in both)
    return titled(title, ["mode", "tok/s", *(["from–to"] if spread else []), *names], rated)


def _rates(figures: Mapping[str, Any]) -> list[str]:
    rate = f"{figures['decode_tokens_per_second']:.1f}"
    if not figures["spread"]:
        return [rate]
    low, high = figures["spread"]["decode_tokens_per_second"]
    return [rate, f"{low:.1f}–{high:.1f}"]


def _verdict(same: int | None, count: int) -> Text:
    if same is None:
        return Text("–")
    return Text(f"{same}/{count}", style="green" if same == count else "bold red")


def _ratios(figures: Mapping[str, Any]) -> Mapping[str, float]:
    return figures["speedup"]["by_category"]


def _by_category(ratios: Mapping[str, Mapping[str, float]]) -> RenderableType:
    categories = next(iter(ratios.values()))
    rows = ([category, *(times(each[category]) for each in ratios.values())] for category in categories)
    return titled("× plain by category", ["category", *ratios], rows)


def _by_position(modes: Mapping[str, Any]) -> RenderableType:
    shown = {mode: each["acceptance_by_position"][:POSITIONS] for mode, each in modes.items()}
    positions = map(str, range(1, 1 + max(map(len, shown.values()))))
    rows = ([mode, *map(percent, shares)] for mode, shares in shown.items())
    return titled("share of drafted tokens accepted, by position in the draft", ["mode", *positions], rows)


def _time_split(modes: Mapping[str, Any]) -> RenderableType:
    parts = ("draft", "verify", "host")
    rows = (
        [mode, *(percent(each[f"{part}_seconds"] / (each["decode_seconds"] or 1.0)) for part in parts)]
        for mode, each in modes.items()
    )
    return titled("share of the decoding time", ["mode", *parts], rows)


def _notes(report: Mapping[str, Any]) -> list[Text]:
    settings, peak = report["settings"], report["peak_memory_bytes"]
    caches = "caches emptied before every answer"
    if settings["caches"] == "kept for repeats":
        caches = "every program reads a prompt once, and answers its repeats from its cache"
    elif settings["caches"] == "carried":
        caches = (
            f"prompts in shuffled order (--order-seed {settings['order_seed']}), caches kept between them"
        )
    lines = [*([f"peak memory {gigabytes(peak)}"] if peak else []), caches]
    return [Text(), *(Text(line, style="dim") for line in lines), *warning_lines(report["noise"]["warnings"])]
