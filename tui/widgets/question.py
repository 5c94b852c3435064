"""A question as it was asked: plain text, never markup."""

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from specdec_onnx.tui.safe import printable
from specdec_onnx.tui.widgets.turn import TurnView


class QuestionView(TurnView):
    """The reader's own turn."""

    def compose(self) -> ComposeResult:
        """The text, and the versions below it."""
        yield Static(Content(printable(self.turn.text)), classes="question-text")
        if note := self.branch_note():
            yield Static(Content(f"{note} edited"), classes="note")
