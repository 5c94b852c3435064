"""From runs to the figures of the JSON contract: rates, ratios against plain, and who said the same."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from specdec_onnx.tui.bench.measure import Round, Run

Summary = dict[str, Any]


def summarize(rounds: Sequence[Round], *, greedy: bool) -> dict[str, Summary]:
    """The contract's `modes`: for each mode its rates, `speedup` and `identical_to_plain`.

    Ratios are total decoded tokens over total decoding seconds, against plain on the same prompts. Sampled
    answers differ by design, so `identical_to_plain` is None for them.
    """
    return {mode: _summary(rounds, mode, greedy) for mode in (rounds[0] if rounds else ())}


def categories(rounds: Iterable[Round]) -> list[str]:
    """The categories that were measured, in the order of the prompts."""
    return list(dict.fromkeys(run.category for results in rounds for run in results.values()))


def _summary(rounds: Sequence[Round], mode: str, greedy: bool) -> Summary:
    runs = [results[mode] for results in rounds]
    passes, drafted = _total(runs, "rounds"), _total(runs, "drafted")
    return {
        "decode_tokens_per_second": round(_rate(runs), 3),
        "time_to_first_token_ms": round(median(run.turns[0].time_to_first_token_ms for run in runs), 1),
        "tokens_per_round": round(_total(runs, "new_tokens") / passes, 3) if passes else 0.0,
        "acceptance_rate": round(_total(runs, "accepted") / drafted, 4) if drafted else 0.0,
        "speedup": {
            "overall": _speedup(rounds, mode),
            "by_category": {
                name: _speedup([results for results in rounds if results[mode].category == name], mode)
                for name in categories(rounds)
            },
        },
        "identical_to_plain": sum(_same(results, mode) for results in rounds) if greedy else None,
        "new_tokens": int(_total(runs, "new_tokens")),
        "decode_seconds": round(_total(runs, "decode_seconds"), 4),
        "prefill_seconds": round(_total(runs, "prefill_seconds"), 4),
        "draft_seconds": round(_total(runs, "draft_seconds"), 4),
        "verify_seconds": round(_total(runs, "verify_seconds"), 4),
    }


def _total(runs: Iterable[Run], count: str) -> float:
    return sum(getattr(turn, count) for run in runs for turn in run.turns)


def _rate(runs: Sequence[Run]) -> float:
    seconds = _total(runs, "decode_seconds")
    return _total(runs, "new_tokens") / seconds if seconds else 0.0


def _speedup(rounds: Sequence[Round], mode: str) -> float:
    plain = _rate([results["plain"] for results in rounds])
    return round(_rate([results[mode] for results in rounds]) / plain, 3) if plain else 0.0


def _same(results: Mapping[str, Run], mode: str) -> bool:
    return results[mode].tokens == results["plain"].tokens
