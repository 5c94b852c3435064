"""An answer: streamed Markdown, the same answer as tokens, and a line of figures below."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content, Span
from textual.strip import Strip
from textual.style import Style
from textual.visual import Visual
from textual.widgets import Static

from specdec_onnx.models.text import on_one_line, printable
from specdec_onnx.tui.chat.history.store import Turn
from specdec_onnx.tui.chat.reply import answer_note
from specdec_onnx.tui.chat.session import Piece, Source, counts
from specdec_onnx.tui.chat.widgets.lines import Line, LineView
from specdec_onnx.tui.chat.widgets.markdown import AnswerText

View = Literal["text", "tokens", "trace"]
VIEWS: tuple[View, ...] = ("text", "tokens", "trace")


class TurnView(Vertical, can_focus=True):
    """One turn on the screen; its keys are the screen's actions, applied to the focused turn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "app.focus_previous", "Turn before", show=False),
        Binding("down,j", "app.focus_next", "Turn after", show=False),
        Binding("c", "screen.copy", "Copy"),
        Binding("b", "screen.copy_code", "Code"),
        Binding("r", "screen.regenerate", "Regenerate"),
        Binding("e", "screen.edit", "Edit"),
        Binding("g", "screen.resume", "Go on"),
        Binding("d,delete", "screen.delete", "Delete"),
        Binding("left", "screen.branch(-1)", "Branch before", show=False),
        Binding("right", "screen.branch(1)", "Branch after", show=False),
        Binding("escape", "screen.stop", "Back", show=False),
    ]

    def __init__(self, turn: Turn, place: tuple[int, int]) -> None:
        super().__init__(id=f"turn-{turn.id}")
        self.turn = turn
        self.place = place

    def branch_note(self) -> str:
        """Which version of the turn this is, when there are several."""
        number, total = self.place
        return f"‹ {number}/{total} ›" if total > 1 else ""


class QuestionView(TurnView):
    """The reader's own turn."""

    def compose(self) -> ComposeResult:
        """The text, and the versions below it."""
        yield Static(Content(printable(self.turn.text)), classes="question-text")
        if note := self.branch_note():
            yield Static(Content(f"{note} edited"), classes="note")


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


class AnswerView(TurnView):
    """The reader's choice of text or tokens, and the line below."""

    def __init__(self, turn: Turn, place: tuple[int, int], view: View = "text", note: str = "") -> None:
        super().__init__(turn, place)
        self.view: View = view
        self.text = turn.text
        self.pieces: Sequence[Piece] = turn.pieces
        self.statistics: Mapping[str, Any] = turn.statistics
        self.rounds: Sequence[int] = turn.statistics.get("tokens_by_round", ())
        self.reason = turn.reason
        self.remark = note
        # Held, not looked up: a frame may be drawn while the parts are not mounted yet, or not any more.
        self.body, self.tokens, self.note = (
            AnswerText(printable(self.text)),
            TokenView(),
            Static("", classes="note"),
        )
        self._streamed = False

    def compose(self) -> ComposeResult:
        """All three parts; the view decides which are displayed."""
        yield self.body
        yield self.tokens
        yield self.note

    def on_mount(self) -> None:
        """Show what is already known."""
        self.show(self.view)
        self.refresh_note()

    def write(self, text: str) -> None:
        """Append streamed text."""
        self.text += text
        self._streamed = True
        self.body.append(printable(text))

    def go_on(self) -> None:
        """It has not ended after all."""
        self.reason, self.statistics, self.remark = None, {}, ""
        self.refresh_note()

    def update_tokens(self, pieces: Sequence[Piece], rounds: Sequence[int]) -> None:
        """Take over the tokens so far; drawn only while they are in view."""
        self.pieces, self.rounds = pieces, rounds
        if self.view != "text":
            self.show(self.view)

    async def finish(self, reason: str, statistics: Mapping[str, Any], remark: str = "") -> None:
        """End the stream and draw the whole text once more, which heals what streaming got wrong."""
        if self._streamed:
            await self.body.finish(printable(self.text))
        self.reason, self.statistics, self.remark = reason, statistics, remark
        self.show(self.view)
        self.refresh_note()

    def show(self, view: View) -> None:
        """Switch between text, tokens and trace; answers without token records stay text."""
        self.view = view
        marked = view != "text" and bool(self.pieces)
        self.body.display = not marked
        self.tokens.display = marked
        if marked:
            self._draw_tokens()

    def _draw_tokens(self) -> None:
        self.tokens.draw(self.pieces, self.rounds, trace=self.view == "trace")

    def refresh_note(self) -> None:
        """The dim line: how it ended, its figures, its versions."""
        parts = [answer_note(self.reason, self.statistics), self.remark, self.branch_note()]
        self.note.update(Content(on_one_line(" · ".join(part for part in parts if part))))
        self.note.display = bool(self.note.visual and str(self.note.content))
