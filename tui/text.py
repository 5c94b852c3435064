"""Numbers as people read them, and text made harmless for a terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_onnx.runtime.generate import Statistics


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


PICTURES = 0x2400
"""Where Unicode keeps the visible signs for the control characters below the blank."""

_SHOWN: dict[int, str] = {
    **{code: chr(PICTURES + code) for code in range(32) if chr(code) not in "\n\t"},
    127: "␡",
    # No sign of their own: further controls, direction overrides, and halves of characters, which can't be encoded.
    **dict.fromkeys(
        [*range(0x80, 0xA0), 0x202D, 0x202E, *range(0xD800, 0xE000)], "\N{REPLACEMENT CHARACTER}"
    ),
    **dict.fromkeys((0x2028, 0x2029), "\n"),
}


def printable(text: str) -> str:
    """With a visible sign in place of each control character; tabs stay, and line ends are newlines."""
    return text.replace("\r\n", "\n").translate(_SHOWN)


def on_one_line(text: str) -> str:
    """The same for a name or a title, whose line ends and tabs are blanks."""
    return " ".join(printable(text).split())
