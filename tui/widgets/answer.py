"""An answer: streamed Markdown, the same answer as tokens, and a line of figures below."""

from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from specdec_onnx.tui.figures import answer_note
from specdec_onnx.tui.history.records import Turn
from specdec_onnx.tui.pieces import Piece
from specdec_onnx.tui.safe import on_one_line, printable
from specdec_onnx.tui.widgets.markdown import AnswerText
from specdec_onnx.tui.widgets.token_view import TokenView
from specdec_onnx.tui.widgets.turn import TurnView, View


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
