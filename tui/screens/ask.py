"""A dialog for one line of text."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class AskScreen(ModalScreen[str | None]):
    """Enter gives the text, Esc gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Cancel")]

    def __init__(self, question: str, value: str) -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        """The question above the input."""
        with Vertical(classes="dialog small") as box:
            box.border_title = self._question
            box.border_subtitle = "Enter · Esc cancels"
            yield Input(self._value, select_on_focus=True)
            yield Static("", classes="note")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Done."""
        self.dismiss(event.value.strip() or None)

    def action_leave(self) -> None:
        """Leave everything as it is."""
        self.dismiss(None)
