"""The small dialogs: the help page, a line to type, and the second press that confirms."""

import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from specdec_onnx.tui.chat.keys import help_page
from specdec_onnx.tui.chat.widgets.prompt import LineInput

SECONDS_TO_CONFIRM = 8


class KeysScreen(ModalScreen[None]):
    """Every key, on one page."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """Lay out the groups in a scrolling box."""
        with VerticalScroll(classes="dialog tall") as box:
            box.border_title = "Keys"
            box.border_subtitle = "Esc closes"
            for heading, rows in help_page():
                yield Label(heading, classes="group")
                with Grid(classes="keys"):
                    for key, text in rows:
                        yield Label(key, classes="key")
                        yield Label(text)

    def on_mount(self) -> None:
        """Let the arrow keys scroll at once."""
        self.query_one(VerticalScroll).focus()


class AskScreen(ModalScreen[str | None]):
    """Asks for one line of text. Enter returns it, Esc returns None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Cancel")]

    def __init__(self, question: str, value: str) -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        """Show the question above the input."""
        with Vertical(classes="dialog small") as box:
            box.border_title = self._question
            box.border_subtitle = "Enter confirms · Esc cancels"
            yield LineInput(self._value, select_on_focus=True)
            yield Static("", classes="note")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the line, or None if it is blank."""
        self.dismiss(event.value.strip() or None)

    def action_leave(self) -> None:
        """Change nothing."""
        self.dismiss(None)


class SecondPress:
    """Tells the second press for the same thing from the first; a press can be confirmed for some seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[object, float] | None = None

    def confirms(self, what: object) -> bool:
        """Return whether this press confirms the one before it; if not, it is the first press for `what`."""
        now, first = self._clock(), self._first
        if first is not None and first[0] == what and now < first[1]:
            self._first = None
            return True
        self._first = (what, now + SECONDS_TO_CONFIRM)
        return False

    def forget(self) -> None:
        """Start over, because the reader has done something else."""
        self._first = None
