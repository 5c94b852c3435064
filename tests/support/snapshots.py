"""What a screen shows, as text, against a file that was looked at and committed.

`SPECDEC_UPDATE_SNAPSHOTS=1 pytest tests/tui/test_chat_screens.py` writes the files anew.
"""

import os
from io import StringIO
from pathlib import Path

from rich.console import Console
from textual.app import App

FOLDER = Path(__file__).parent.parent / "tui" / "chat" / "screens"


def screen_text(app: App[None]) -> str:
    """The characters on the screen, line by line, without trailing blanks."""
    width, height = app.size
    console = Console(width=width, height=height, file=StringIO(), force_terminal=True, record=True)
    update = app.screen._compositor.render_update(full=True)
    console.print(update)
    lines = console.export_text(styles=False).split("\n")[:height]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def assert_looks_like(app: App[None], name: str) -> None:
    """Compare with the committed file, or write it when asked to."""
    file = FOLDER / f"{name}-{app.size.width}x{app.size.height}.txt"
    shown = screen_text(app)
    if os.environ.get("SPECDEC_UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8"), f"{file} shows something else"
