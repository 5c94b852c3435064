"""Text from a model, a user, a file or a name, made harmless for a terminal that would obey it."""

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
