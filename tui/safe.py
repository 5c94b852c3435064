"""Text from a model or a file, made harmless for a terminal."""

_CONTROLS = {code: None for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Without control characters, which a terminal would obey; line ends and tabs stay."""
    return text.translate(_CONTROLS)
