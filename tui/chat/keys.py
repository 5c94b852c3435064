"""Everything the chat screen can do, as one table: bindings, palette, bottom line and help page come from it.

A new action is one row here and one method `action_NAME` of the chat screen or one of its parts.
"""

from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class Command:
    """One action. Without a `key` it is only in the palette, without a `footer` not in the bottom line.

    `turn_key` runs it while a turn is selected; the bottom line shows its footer then, and only then.
    """

    key: str
    action: str
    label: str
    help: str
    footer: str = ""
    turn_key: str = ""


COMMANDS = (
    Command("f1", "keys", "Keys", "List every key", "Keys"),
    Command("f2", "settings", "Settings", "Set the system prompt, sampling and device", "Settings"),
    Command(
        "f3",
        "token_view",
        "Token view",
        "Show each token's source; press again to add rejected ones",
        "Tokens",
    ),
    Command(
        "f4", "speculation", "Speculation on/off", "Turn speculation on or off for new answers", "Drafts"
    ),
    Command(
        "f5", "compare", "Compare speeds", "Answer the last question with and without speculation", "A/B"
    ),
    Command("ctrl+o", "models", "Models", "Open a model pair, or download one", "Models"),
    Command("ctrl+n", "new", "New conversation", "Start a new conversation"),
    Command("ctrl+f", "history", "History", "Find, open, rename and delete conversations", "History"),
    Command("ctrl+y", "copy", "Copy turn", "Copy the last answer or the selected turn", "Copy", "c"),
    Command(
        "ctrl+b",
        "copy_code",
        "Copy code",
        "Copy the last code block; press again for the one before",
        "Code",
        "b",
    ),
    Command("ctrl+r", "regenerate", "Regenerate", "Answer again, as a new branch", "Regenerate", "r"),
    Command("ctrl+e", "edit", "Edit and resend", "Edit a question, as a new branch", "Edit", "e"),
    Command("ctrl+g", "resume", "Continue", "Continue an answer that was cut short", "Continue", "g"),
    Command("ctrl+t", "select_turn", "Select a turn", "Select a turn: arrows move, letters act on it"),
    Command("alt+left", "branch(-1)", "Previous branch", "Show the previous version of a turn", "", "left"),
    Command("alt+right", "branch(1)", "Next branch", "Show the next version of a turn", "", "right"),
    Command("", "delete", "Delete turn", "Delete a turn and everything after it", "Delete", "d,delete"),
    Command("", "rename", "Rename conversation", "Change the title of this conversation"),
    Command("", "export('markdown')", "Export as Markdown", "Save the shown branch as a .md file"),
    Command("", "export('json')", "Export as JSON", "Save every branch as a .json file for import"),
    Command("", "import", "Import conversation", "Open a .json file that specdec exported"),
    Command(
        "", "delete_conversation", "Delete conversation", "Delete this conversation with all its branches"
    ),
)

SCREEN_BINDINGS = [
    Binding(
        command.key,
        command.action,
        command.footer or command.label,
        show=bool(command.footer) and not command.turn_key,
        priority=True,
    )
    for command in COMMANDS
    if command.key
]
TURN_BINDINGS = [
    Binding(
        command.turn_key,
        f"screen.{command.action}",
        command.footer or command.label,
        show=bool(command.footer),
    )
    for command in COMMANDS
    if command.turn_key
]

PROMPT_KEYS = (
    ("Enter", "Send"),
    ("Ctrl+J, Alt+Enter", "New line (also Shift+Enter, if the terminal supports it)"),
    ("Up, Down", "Recall earlier questions if the prompt is empty"),
    ("Esc, Ctrl+C", "Stop the answer and keep its text, or cancel editing; twice: cancel a download"),
    ("PageUp, PageDown", "Scroll the conversation"),
    ("Ctrl+P", "Command palette: every action by name"),
    ("Ctrl+Q", "Quit"),
)


def help_page() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the whole table in groups: a heading, then (key or label, what it does)."""
    anywhere = [(_caption(command.key), command.help) for command in COMMANDS if command.key]
    on_turn = [(_captions(command.turn_key), command.label) for command in COMMANDS if command.turn_key]
    palette = [(command.label, command.help) for command in COMMANDS if not command.key]
    return [
        ("In the prompt", list(PROMPT_KEYS)),
        ("Anywhere", anywhere),
        (
            "On a selected turn (Ctrl+T, Tab or a click)",
            [("Up, Down", "Previous turn, next turn"), *on_turn, ("Esc", "Back to the prompt")],
        ),
        ("In the palette (Ctrl+P)", palette),
    ]


def _caption(key: str) -> str:
    """`ctrl+r` as on a keyboard: `Ctrl+R`."""
    return "+".join(part.upper() if len(part) == 1 else part.capitalize() for part in key.split("+"))


def _captions(keys: str) -> str:
    return ", ".join(key if len(key) == 1 else key.capitalize() for key in keys.split(","))
