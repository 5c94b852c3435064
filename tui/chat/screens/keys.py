"""Every key, on one page."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from specdec_onnx.tui.chat.widgets.prompt import LineInput


@dataclass(frozen=True, slots=True)
class Command:
    """`key` empty means palette only; `footer` is the short word in the bottom line."""

    key: str
    action: str
    label: str
    help: str
    footer: str = ""
    priority: bool = True


COMMANDS = (
    Command("f1", "keys", "Keys", "Every key and what it does", "Keys"),
    Command(
        "f2", "settings", "Settings", "System prompt, sampling and device of this conversation", "Settings"
    ),
    Command(
        "f3",
        "token_view",
        "Token view",
        "Where each token came from: off, tokens, trace with rejected ones",
        "Tokens",
    ),
    Command(
        "f4",
        "speculation",
        "Speculation on/off",
        "Answer with or without speculation from now on",
        "Drafts",
    ),
    Command(
        "f5",
        "compare",
        "A/B on the last question",
        "Answer it plainly and speculatively; compare time and text",
        "A/B",
    ),
    Command("ctrl+o", "models", "Models", "Choose a pair, or get one", "Models"),
    Command("ctrl+n", "new", "New conversation", "Start with an empty page"),
    Command("ctrl+f", "history", "History", "Find, open, rename and delete conversations", "History"),
    Command(
        "ctrl+r", "regenerate", "Regenerate", "Answer the question again, on a branch beside this answer"
    ),
    Command("ctrl+e", "edit", "Edit and resend", "Change a question and ask it again, on a branch beside it"),
    Command("ctrl+g", "resume", "Go on", "Continue an answer that was stopped or reached its limit"),
    Command("ctrl+y", "copy", "Copy turn", "Copy the answer (or the selected turn) as Markdown"),
    Command("ctrl+b", "copy_code", "Copy code block", "Copy the last code block; again for the one before"),
    Command(
        "ctrl+t", "select_turn", "Select a turn", "Move to the turns; arrows, then one letter acts on it"
    ),
    Command("alt+left", "branch(-1)", "Previous branch", "Show the version of this turn before this one"),
    Command("alt+right", "branch(1)", "Next branch", "Show the version of this turn after this one"),
    Command("", "delete", "Delete turn", "Remove the selected (or last) turn and what followed it"),
    Command("", "rename", "Rename conversation", "Give this conversation another title"),
    Command("", "export('markdown')", "Export as Markdown", "Write the shown branch to a .md file"),
    Command(
        "", "export('json')", "Export as JSON", "Write every branch to a .json file that can be imported"
    ),
    Command("", "import", "Import conversation", "Read a .json file that specdec exported"),
    Command(
        "", "delete_conversation", "Delete conversation", "Remove this conversation with all its branches"
    ),
)

PROMPT_KEYS = (
    ("Enter", "send"),
    ("Ctrl+J, Alt+Enter", "new line (Shift+Enter where the terminal knows it)"),
    ("Up, Down", "earlier questions, while the line is empty"),
    ("Esc, Ctrl+C", "stop the answer and keep what came; or leave editing; twice: give a download up"),
    ("PageUp, PageDown", "scroll the conversation"),
    ("Ctrl+P", "command palette: every action by name"),
    ("Ctrl+Q", "quit"),
)

TURN_KEYS = (
    ("Up, Down", "the turn before, the turn after"),
    ("c", "copy"),
    ("b", "copy its code block"),
    ("r", "regenerate"),
    ("e", "edit and resend"),
    ("g", "go on"),
    ("d, Delete", "delete"),
    ("Left, Right", "the versions of this turn"),
    ("Esc", "back to the prompt"),
)


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
