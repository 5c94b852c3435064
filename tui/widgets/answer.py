"""An answer: streamed Markdown, the same answer as tokens, and a line of figures below."""

from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from specdec_onnx.tui.figures import answer_note
from specdec_onnx.tui.history.records import Turn
from specdec_onnx.tui.pieces import Piece
from specdec_onnx.tui.safe import printable
from specdec_onnx.tui.widgets.markdown import AnswerMarkdown
from specdec_onnx.tui.widgets.token_view import TokenView
from specdec_onnx.tui.widgets.turn import TurnView, View


class AnswerView(TurnView):
    """Streams into an empty Markdown only: an update followed by appends would lose an open fence."""

    def __init__(self, turn: Turn, place: tuple[int, int], view: View = "text", note: str = "") -> None:
        super().__init__(turn, place)
        self.view: View = view
        self.text = printable(turn.text)
        self.pieces: Sequence[Piece] = turn.pieces
        self.statistics: Mapping[str, Any] = turn.statistics
        self.rounds: Sequence[int] = turn.statistics.get("tokens_by_round", ())
        self.reason = turn.reason
        self.remark = note
        self._stream: MarkdownStream | None = None

    def compose(self) -> ComposeResult:
        """All three parts; the view decides which are displayed."""
        yield AnswerMarkdown(self.text, open_links=False, classes="answer-text")
        yield TokenView(classes="answer-tokens")
        yield Static("", classes="note")

    def on_mount(self) -> None:
        """Show what is already known."""
        self.show(self.view)
        self.refresh_note()

    async def write(self, text: str) -> None:
        """Append streamed text."""
        if self._stream is None:
            markdown = self.query_one(AnswerMarkdown)
            markdown.growing = True
            self._stream = Markdown.get_stream(markdown)
        shown = printable(text)
        self.text += shown
        await self._stream.write(shown)

    def go_on(self) -> None:
        """It has not ended after all."""
        self.reason, self.statistics, self.remark = None, {}, ""
        self.refresh_note()

    def update_tokens(self, pieces: Sequence[Piece], rounds: Sequence[int]) -> None:
        """Take over the tokens so far; drawn only while they are in view."""
        self.pieces, self.rounds = pieces, rounds
        if self.view != "text":
            self._draw_tokens()

    async def finish(self, reason: str, statistics: Mapping[str, Any], remark: str = "") -> None:
        """End the stream and draw the whole text once more, which heals what streaming got wrong."""
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None
            markdown = self.query_one(AnswerMarkdown)
            markdown.growing = False
            await markdown.update(self.text)
        self.reason, self.statistics, self.remark = reason, statistics, remark
        self.show(self.view)
        self.refresh_note()

    def show(self, view: View) -> None:
        """Switch between text, tokens and trace; answers without token records stay text."""
        self.view = view
        marked = view != "text" and bool(self.pieces)
        self.query_one(Markdown).display = not marked
        self.query_one(TokenView).display = marked
        if marked:
            self._draw_tokens()

    def _draw_tokens(self) -> None:
        self.query_one(TokenView).draw(self.pieces, self.rounds, trace=self.view == "trace")

    def refresh_note(self) -> None:
        """The dim line: how it ended, its figures, its versions."""
        parts = [answer_note(self.reason, self.statistics), self.remark, self.branch_note()]
        note = self.query_one(".note", Static)
        note.update(Content(" · ".join(part for part in parts if part)))
        note.display = bool(note.visual and str(note.content))
