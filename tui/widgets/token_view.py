"""An answer as tokens, each marked with who said it first: by colour and by underline."""

from collections.abc import Sequence

from textual.content import Content

from specdec_onnx.tui.pieces import Piece, Source, counts

STYLES: dict[Source, str] = {
    "draft": "$text-success underline",
    "suffix": "$text-accent bold underline",
    "target": "",
    "rejected": "$text-error strike",
}
NAMES: dict[Source, str] = {
    "draft": "draft model",
    "suffix": "text so far",
    "target": "target",
    "rejected": "rejected",
}
ORDER: tuple[Source, ...] = ("suffix", "draft", "target", "rejected")


def token_content(pieces: Sequence[Piece], rounds: Sequence[int] = (), *, trace: bool = False) -> Content:
    """The marked text; with `trace` the rejected tokens too and a bar after each round."""
    parts: list[tuple[str, str]] = []
    ends = _ends(rounds) if trace else set()
    said = 0
    for piece in pieces:
        rejected = piece.source == "rejected"
        if rejected and not trace:
            continue
        parts.append((_visible(piece.text) if rejected else piece.text, STYLES[piece.source]))
        said += not rejected
        if not rejected and said in ends:
            parts.append(("│", "$text-muted"))
    return Content.assemble(*parts)


def _visible(text: str) -> str:
    return text.replace("\n", "⏎")


def _ends(rounds: Sequence[int]) -> set[int]:
    total, ends = 0, set()
    for size in rounds:
        total += size
        ends.add(total)
    return ends


def legend(pieces: Sequence[Piece], *, trace: bool) -> Content:
    """What the marks mean, with the number of tokens of each kind."""
    totals = counts(pieces)
    parts: list[tuple[str, str]] = []
    for source in ORDER if trace else ORDER[:-1]:
        parts += [(NAMES[source], STYLES[source]), (f" {totals[source]}  ", "")]
    if trace:
        parts += [("│", "$text-muted"), (" end of a round", "")]
    return Content.assemble(*parts)
