"""Asking before something is done: a dialog for one line of text, or for the same press again."""

import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from specdec_onnx.tui.widgets.inputs import LineInput

SECONDS_TO_CONFIRM = 8


class Twice:
    """Tells the second press for the same thing from the first; each press has its own time to be confirmed in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: tuple[object, float] | None = None

    def again(self, what: object) -> bool:
        """Whether this press confirms the one before it; if not, it is the first one for `what`."""
        now, asked = self._clock(), self._asked
        if asked is not None and asked[0] == what and now < asked[1]:
            self._asked = None
            return True
        self._asked = (what, now + SECONDS_TO_CONFIRM)
        return False

    def forget(self) -> None:
        """Something else was done meanwhile."""
        self._asked = None


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
            yield LineInput(self._value, select_on_focus=True)
            yield Static("", classes="note")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Done."""
        self.dismiss(event.value.strip() or None)

    def action_leave(self) -> None:
        """Leave everything as it is."""
        self.dismiss(None)
