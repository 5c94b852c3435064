"""An answer as tokens, each marked with who said it first: by colour and by underline."""

from collections.abc import Iterable, Sequence

from textual.content import Content, Span
from textual.strip import Strip
from textual.style import Style
from textual.visual import Visual

from specdec_onnx.tui.pieces import Piece, Source, counts
from specdec_onnx.tui.safe import printable
from specdec_onnx.tui.widgets.lines import Line, LineView

LINES = 8
Part = tuple[str, tuple[Span, ...]]

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


class TokenView(LineView):
    """Cut at line ends into parts of some lines each, so that a frame renders the last one only."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[Content] = []
        self._rendered: dict[Part, list[Line]] = {}

    def draw(self, pieces: Sequence[Piece], rounds: Sequence[int], *, trace: bool) -> None:
        """Show these tokens."""
        marked = token_content(pieces, rounds, trace=trace)
        self._parts = [*cut(marked), Content.assemble("\n", legend(pieces, trace=trace))]
        self.redraw()

    def colours(self) -> Style:
        """Those of the theme, on a background that changes with the focus."""
        return self.visual_style

    def make_lines(self, width: int, *, anew: bool) -> list[Line]:
        """Parts that are known are not rendered again."""
        known = {} if anew else self._rendered
        keyed = [((part.plain, tuple(part.spans)), part) for part in self._parts]
        self._rendered = {
            key: known[key] if key in known else self._lines_of(part, width) for key, part in keyed
        }
        return [line for key, _ in keyed for line in self._rendered[key]]

    def _lines_of(self, part: Content, width: int) -> list[Line]:
        strips = Visual.to_strips(self, part, width, None, self.visual_style, apply_selection=False, pad=True)
        return [Line(Strip([]), strip) for strip in strips]


def cut(content: Content) -> list[Content]:
    """Pieces of some lines each, without the line ends between them."""
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
        shown = printable(piece.text)
        parts.append((shown.replace("\n", "⏎") if rejected else shown, STYLES[piece.source]))
        said += not rejected
        if not rejected and said in ends:
            parts.append(("│", "$text-muted"))
    return Content.assemble(*parts)


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
