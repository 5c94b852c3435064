"""Text for a terminal: nothing in it that the terminal would obey, and numbers with their units."""

PICTURES = 0x2400
"""Where Unicode keeps the visible signs for the control characters."""

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
    """`text` with a visible sign in place of each control character; tabs stay, and line ends become newlines."""
    return text.replace("\r\n", "\n").translate(_SHOWN)


def on_one_line(text: str) -> str:
    """`printable`, with a space in place of each run of whitespace: for names and titles."""
    return " ".join(printable(text).split())


def gigabytes(size: float) -> str:
    """A number of bytes as `1.6 GB` or `135 MB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def rate(tokens_per_second: float) -> str:
    """`42.1 tok/s`."""
    return f"{tokens_per_second:.1f} tok/s"


def percent(share: float) -> str:
    """`71 %` for 0.71."""
    return f"{100 * share:.0f} %"


def times(ratio: float) -> str:
    """`2.31×`."""
    return f"{ratio:.2f}×"
