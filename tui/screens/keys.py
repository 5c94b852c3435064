"""Every key, on one page."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Label

from specdec_onnx.tui.commands_table import COMMANDS, PROMPT_KEYS, TURN_KEYS


class KeysScreen(ModalScreen[None]):
    """Made from the same table as the bindings, so it can't lie."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """Three groups in a scrolling box."""
        with VerticalScroll(classes="dialog tall") as box:
            box.border_title = "Keys"
            box.border_subtitle = "Esc closes"
            for title, rows in groups():
                yield Label(title, classes="group")
                with Grid(classes="keys"):
                    for key, text in rows:
                        yield Label(key, classes="key")
                        yield Label(text)

    def on_mount(self) -> None:
        """Arrow keys scroll at once."""
        self.query_one(VerticalScroll).focus()


def groups() -> list[tuple[str, list[tuple[str, str]]]]:
    """The whole table: heading, then (key or name, what it does)."""
    anywhere = [(shown(command.key), command.help) for command in COMMANDS if command.key]
    palette = [(command.label, command.help) for command in COMMANDS if not command.key]
    return [
        ("In the prompt", list(PROMPT_KEYS)),
        ("Anywhere", anywhere),
        ("On a selected turn (Ctrl+T, Tab or a click)", list(TURN_KEYS)),
        ("In the palette (Ctrl+P)", palette),
    ]


def shown(key: str) -> str:
    """`ctrl+r` as it stands on keyboards: `Ctrl+R`."""
    return "+".join(part.upper() if len(part) == 1 else part.capitalize() for part in key.split("+"))
