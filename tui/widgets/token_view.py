"""An answer as tokens, each marked with who said it first: by colour and by underline."""

from collections.abc import Iterable, Sequence

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from specdec_onnx.tui.pieces import Piece, Source, counts

LINES = 8

STYLES: dict[Source, str] = {
    "draft": "$text-success underline",
    "suffix": "$text-warning bold underline",
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


class TokenView(Vertical):
    """Cut at line ends into labels of some tokens each, so that a frame redraws the last one only."""

    def __init__(self, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._parts: list[Content] = []
        self._drawn: list[Content] = []

    @property
    def plain(self) -> str:
        """The characters on view."""
        return "\n".join(part.plain for part in self._parts)

    def draw(self, pieces: Sequence[Piece], rounds: Sequence[int], *, trace: bool) -> None:
        """Show these tokens; what is drawn already is left alone."""
        marked = token_content(pieces, rounds, trace=trace)
        self._parts = [*cut(marked), Content.assemble("\n", legend(pieces, trace=trace))]
        labels = list(self.query(Static))
        for label, part, drawn in zip(labels, self._parts, self._drawn, strict=False):
            if part != drawn or part.spans != drawn.spans:
                label.update(part)
        self.mount_all([Static(part) for part in self._parts[len(labels) :]])
        for label in labels[len(self._parts) :]:
            label.remove()
        self._drawn = list(self._parts)


def cut(content: Content) -> list[Content]:
    """Pieces of some lines each; the line ends between them are the widgets' own."""
    lines = content.split("\n", allow_blank=True)
    newline = Content("\n")
    return [newline.join(lines[at : at + LINES]) for at in range(0, len(lines), LINES)]


def token_content(pieces: Iterable[Piece], rounds: Sequence[int] = (), *, trace: bool = False) -> Content:
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
