"""The turns on the screen: a question, and an answer as Markdown or as marked tokens with a line of figures below."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
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
from specdec_onnx.tui.chat.keys import TURN_BINDINGS
from specdec_onnx.tui.chat.reply import answer_note
from specdec_onnx.tui.chat.session import Piece, Source, counts
from specdec_onnx.tui.chat.widgets.lines import Line, LineView
from specdec_onnx.tui.chat.widgets.markdown import AnswerText

View = Literal["text", "tokens", "trace"]
VIEWS: tuple[View, ...] = ("text", "tokens", "trace")

STYLES: dict[Source, str] = {
    "draft": "$text-success underline",
    "suffix": "$text-warning bold underline",
    "target": "",
    "rejected": "$text-error strike",
}
LEGEND: dict[Source, str] = {
    "suffix": "text so far",
    "draft": "draft model",
    "target": "target",
    "rejected": "rejected",
}


class TurnView(Vertical, can_focus=True):
    """One turn. Its keys run the screen's actions, which apply to the focused turn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "app.focus_previous", "Previous turn", show=False),
        Binding("down,j", "app.focus_next", "Next turn", show=False),
        *TURN_BINDINGS,
        Binding("escape", "screen.stop", "Back", show=False),
    ]

    def __init__(self, turn: Turn, version: tuple[int, int]) -> None:
        super().__init__(id=f"turn-{turn.id}")
        self.turn = turn
        self._version = version

    def version_note(self) -> str:
        """Return which version of the turn this is, if there are several."""
        number, total = self._version
        return f"‹ {number}/{total} ›" if total > 1 else ""


class QuestionView(TurnView):
    """A question."""

    def compose(self) -> ComposeResult:
        """Show the text, and its version below it."""
        yield Static(Content(printable(self.turn.text)), classes="question-text")
        if note := self.version_note():
            yield Static(Content(f"{note} edited"), classes="note")


class AnswerView(TurnView):
    """An answer as text or as tokens, and the line below it."""

    def __init__(self, turn: Turn, version: tuple[int, int], view: View = "text") -> None:
        super().__init__(turn, version)
        self.view: View = view
        self.text = turn.text
        self._new_pieces: Sequence[Piece] = ()
        self._statistics: Mapping[str, Any] = turn.statistics
        self._rounds: Sequence[int] = turn.statistics.get("tokens_by_round", ())
        self._reason, self._remark = turn.reason, ""
        self._streamed = False
        # Attributes, not queries: a frame may be drawn before the parts are mounted, or after they are removed.
        self.body = AnswerText(printable(self.text))
        self.tokens = TokenView()
        self.note = Static("", classes="note")

    def compose(self) -> ComposeResult:
        """Yield all three parts; `show` decides which are visible."""
        yield self.body
        yield self.tokens
        yield self.note

    def on_mount(self) -> None:
        """Show what the stored turn has."""
        self.show(self.view)
        self.refresh_note()

    def write(self, text: str) -> None:
        """Append streamed text."""
        self.text += text
        self._streamed = True
        self.body.append(printable(text))

    def resume(self) -> None:
        """Drop the ending of an answer that is being continued."""
        self._reason, self._statistics, self._remark = None, {}, ""
        self.refresh_note()

    def update_tokens(self, pieces: Sequence[Piece], rounds: Sequence[int]) -> None:
        """Take the tokens so far; they are drawn only while they are visible."""
        self._new_pieces, self._rounds = pieces, rounds
        if self.view != "text":
            self.show(self.view)

    async def finish(self, reason: str, statistics: Mapping[str, Any], remark: str = "") -> None:
        """End the stream and render the whole text again, which corrects what streaming got wrong."""
        if self._streamed:
            await self.body.finish(printable(self.text))
        self._reason, self._statistics, self._remark = reason, statistics, remark
        self.show(self.view)
        self.refresh_note()

    def show(self, view: View) -> None:
        """Switch between text, tokens and trace; an answer without stored tokens stays text."""
        self.view = view
        pieces = () if view == "text" else self._new_pieces or self.turn.pieces
        marked = bool(pieces)
        self.body.display = not marked
        self.tokens.display = marked
        if marked:
            self.tokens.draw(pieces, self._rounds, trace=view == "trace")

    def refresh_note(self) -> None:
        """Update the dim line: how the answer ended, its figures, its version."""
        parts = [answer_note(self._reason, self._statistics), self._remark, self.version_note()]
        text = on_one_line(" · ".join(part for part in parts if part))
        self.note.update(Content(text))
        self.note.display = bool(text)


_Key = tuple[str, tuple[Span, ...]]


class TokenView(LineView):
    """Tokens marked by source, cut at line ends into parts, so that a frame renders only the last part."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[Content] = []
        self._rendered: dict[_Key, list[Line]] = {}

    def draw(self, pieces: Sequence[Piece], rounds: Sequence[int], *, trace: bool) -> None:
        """Show these tokens, and what the marks mean."""
        tokens = token_content(pieces, rounds, trace=trace)
        self._parts = [*_cut(tokens), Content.assemble("\n", legend(pieces, trace=trace))]
        self.redraw()

    def appearance(self) -> Style:
        """Return the widget's style, whose background changes with the focus."""
        return self.visual_style

    def make_lines(self, width: int, *, reuse: bool) -> list[Line]:
        """Join the lines of all parts."""
        known = self._rendered if reuse else {}
        keyed: list[tuple[_Key, Content]] = [((part.plain, tuple(part.spans)), part) for part in self._parts]
        self._rendered = {key: known.get(key) or self._render_part(part, width) for key, part in keyed}
        return [line for key, _ in keyed for line in self._rendered[key]]

    def _render_part(self, part: Content, width: int) -> list[Line]:
        strips = Visual.to_strips(self, part, width, None, self.visual_style, apply_selection=False, pad=True)
        return [Line(Strip([]), strip) for strip in strips]


_LINES_IN_PART = 8


def _cut(content: Content) -> list[Content]:
    lines = content.split("\n", allow_blank=True)
    newline = Content("\n")
    return [newline.join(lines[at : at + _LINES_IN_PART]) for at in range(0, len(lines), _LINES_IN_PART)]


def token_content(pieces: Iterable[Piece], rounds: Sequence[int] = (), *, trace: bool = False) -> Content:
    """Mark each token by its source; with `trace`, show rejected tokens and a bar after each round.

    Args:
        rounds: Tokens of the answer that each round added.
    """
    parts: list[tuple[str, str]] = []
    round_ends = set(accumulate(rounds)) if trace else set()
    count = 0
    for piece in pieces:
        text = printable(piece.text)
        if piece.source != "rejected":
            count += 1
            parts.append((text, STYLES[piece.source]))
            if count in round_ends:
                parts.append(("│", "$text-muted"))
        elif trace:
            parts.append((text.replace("\n", "⏎"), STYLES["rejected"]))
    return Content.assemble(*parts)


def legend(pieces: Sequence[Piece], *, trace: bool) -> Content:
    """Explain the marks, with the number of tokens from each source."""
    totals = counts(pieces)
    parts: list[tuple[str, str]] = []
    for source, name in LEGEND.items():
        if trace or source != "rejected":
            parts += [(name, STYLES[source]), (f" {totals[source]}  ", "")]
    if trace:
        parts += [("│", "$text-muted"), (" end of a round", "")]
    return Content.assemble(*parts)
