"""Everything the chat screen can do, as one table: bindings, palette, bottom line and help page come from it.

A new action is one row here and one method `action_NAME` of the chat screen.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One action. Empty fields: without `key` it is only in the palette, without `footer` not in the bottom line.

    `turn_key` runs it while a turn is selected (several keys separated by commas); `turn_footer` is its word then.
    """

    key: str
    action: str
    label: str
    help: str
    footer: str = ""
    turn_key: str = ""
    turn_footer: str = ""


COMMANDS = (
    Command("f1", "keys", "Keys", "List every key", "Keys"),
    Command(
        "f2",
        "settings",
        "Settings",
        "Set the system prompt, sampling and device of this conversation",
        "Settings",
    ),
    Command(
        "f3",
        "token_view",
        "Token view",
        "Show the source of each token; again for the rejected ones",
        "Tokens",
    ),
    Command(
        "f4", "speculation", "Speculation on/off", "Turn speculation on or off for new answers", "Drafts"
    ),
    Command(
        "f5",
        "compare",
        "A/B on the last question",
        "Answer it plainly and speculatively; compare time and text",
        "A/B",
    ),
    Command("ctrl+o", "models", "Models", "Open a model pair, or download one", "Models"),
    Command("ctrl+n", "new", "New conversation", "Start a new conversation"),
    Command("ctrl+f", "history", "History", "Find, open, rename and delete conversations", "History"),
    Command(
        "ctrl+y",
        "copy",
        "Copy turn",
        "Copy the last answer or the selected turn as Markdown",
        turn_key="c",
        turn_footer="Copy",
    ),
    Command(
        "ctrl+b",
        "copy_code",
        "Copy code block",
        "Copy the last code block; again for the one before it",
        turn_key="b",
        turn_footer="Code",
    ),
    Command(
        "ctrl+r",
        "regenerate",
        "Regenerate",
        "Answer the question again, as a new branch",
        turn_key="r",
        turn_footer="Regenerate",
    ),
    Command(
        "ctrl+e",
        "edit",
        "Edit and resend",
        "Change a question and ask it again, as a new branch",
        turn_key="e",
        turn_footer="Edit",
    ),
    Command(
        "ctrl+g",
        "resume",
        "Continue",
        "Continue an answer that was stopped or reached its limit",
        turn_key="g",
        turn_footer="Continue",
    ),
    Command(
        "ctrl+t", "select_turn", "Select a turn", "Select a turn with the arrow keys, then press a letter"
    ),
    Command(
        "alt+left", "branch(-1)", "Previous branch", "Show the previous version of a turn", turn_key="left"
    ),
    Command("alt+right", "branch(1)", "Next branch", "Show the next version of a turn", turn_key="right"),
    Command(
        "",
        "delete",
        "Delete turn",
        "Delete the selected (or last) turn and all after it",
        turn_key="d,delete",
        turn_footer="Delete",
    ),
    Command("", "rename", "Rename conversation", "Change the title of this conversation"),
    Command("", "export('markdown')", "Export as Markdown", "Save the shown branch as a .md file"),
    Command("", "export('json')", "Export as JSON", "Save every branch as a .json file for import"),
    Command("", "import", "Import conversation", "Open a .json file that specdec exported"),
    Command(
        "", "delete_conversation", "Delete conversation", "Delete this conversation with all its branches"
    ),
)

PROMPT_KEYS = (
    ("Enter", "Send"),
    ("Ctrl+J, Alt+Enter", "New line (also Shift+Enter, if the terminal supports it)"),
    ("Up, Down", "Earlier questions, while the prompt is empty"),
    ("Esc, Ctrl+C", "Stop the answer and keep the text so far; or cancel editing"),
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
