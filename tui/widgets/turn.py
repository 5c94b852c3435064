"""What questions and answers have in common: focus, keys, the line below."""

from typing import ClassVar, Literal

from textual.binding import Binding, BindingType
from textual.containers import Vertical

from specdec_onnx.tui.history.records import Turn

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
