"""Every action of the chat, once: keys, footer, palette and help are made from this table."""

from dataclasses import dataclass


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
