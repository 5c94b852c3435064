"""The figures of an answer as the chat shows them."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec_onnx.tui.wording import percent

BARS = "▁▂▃▄▅▆▇█"
ENDINGS = {
    "cancelled": "stopped",
    "length": "reached the length limit (Ctrl+G goes on)",
    "context": "the context is full",
    "error": "failed",
}


def figures(statistics: Mapping[str, Any]) -> str:
    """`42 tok/s · 214 tok · 3.1 tok/round · 71 % accepted · first token 0.3 s`."""
    speed = statistics.get("decode_tokens_per_second") or 0.0
    parts = [f"{speed:.0f} tok/s" if speed >= 10 else f"{speed:.1f} tok/s"] if speed else []
    parts.append(f"{statistics.get('new_tokens', 0)} tok")
    if statistics.get("drafted"):
        parts.append(f"{statistics.get('tokens_per_round', 0.0):.1f} tok/round")
        parts.append(f"{percent(statistics.get('acceptance_rate', 0.0))} accepted")
    if first := statistics.get("time_to_first_token_ms"):
        parts.append(f"first token {first / 1000:.1f} s")
    return " · ".join(parts)


def answer_note(reason: str | None, statistics: Mapping[str, Any]) -> str:
    """The line under an answer; an answer without a reason was cut off with the program."""
    if reason is None:
        return "interrupted" if statistics else ""
    why = f": {statistics['error']}" if reason == "error" and statistics.get("error") else ""
    parts = [ENDINGS.get(reason, "") + why]
    if statistics.get("new_tokens"):
        speed = statistics.get("decode_tokens_per_second") or 0.0
        parts.append(f"{speed:.0f} tok/s" if speed >= 10 else f"{speed:.1f} tok/s")
        parts.append(f"{statistics['new_tokens']} tok")
        drafted = statistics.get("drafted")
        parts.append(f"{percent(statistics.get('acceptance_rate', 0.0))} accepted" if drafted else "")
    return " · ".join(part for part in parts if part)


def sparkline(rounds: Sequence[int], width: int) -> str:
    """Tokens per round of the last `width` rounds, one bar each; 1 is the lowest bar, 8 and more the full one."""
    return "".join(BARS[min(max(size, 1), len(BARS)) - 1] for size in rounds[-width:]) if width > 0 else ""


def meter(used: int, limit: int, width: int = 8) -> str:
    """`▰▰▱▱▱▱▱▱ 21 %` of the context."""
    share = min(used / limit, 1.0) if limit else 0.0
    full = round(share * width)
    return f"{'▰' * full}{'▱' * (width - full)} {percent(share)}"


def tokens_used(statistics: Mapping[str, Any]) -> int:
    """Tokens of the context that an answer left filled: its prompt and itself."""
    return int(statistics.get("prompt_tokens", 0)) + int(statistics.get("new_tokens", 0))
