"""Numbers as people read them; one wording for every command and the chat."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_onnx.runtime.statistics import Statistics


def rate(tokens_per_second: float) -> str:
    """`42.1 tok/s`."""
    return f"{tokens_per_second:.1f} tok/s"


def percent(share: float) -> str:
    """`71 %` for 0.71."""
    return f"{100 * share:.0f} %"


def times(ratio: float) -> str:
    """`2.31×`."""
    return f"{ratio:.2f}×"


def statistics_line(statistics: "Statistics") -> str:
    """One line for an answer: `42.1 tok/s · 214 tok · 3.1 tok/round · 71 % accepted · first token 0.3 s`."""
    if not statistics.new_tokens:
        return "no token yet"
    parts = [rate(statistics.decode_tokens_per_second), f"{statistics.new_tokens} tok"]
    if statistics.drafted:
        parts.append(f"{statistics.tokens_per_round:.1f} tok/round")
        parts.append(f"{percent(statistics.acceptance_rate)} accepted")
    parts.append(f"first token {statistics.time_to_first_token_ms / 1000:.1f} s")
    return " · ".join(parts)
