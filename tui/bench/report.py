"""From runs to the figures of the JSON contract: rates, ratios against plain, and who said the same."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from specdec_onnx.tui.bench.contestant import Run, by_position, by_source, total
from specdec_onnx.tui.bench.measure import Round

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
