"""Compare the text of a screen with a file that was reviewed and committed.

`SPECDEC_UPDATE_SNAPSHOTS=1 pytest tests/tui/chat/test_screens.py` rewrites the files.
"""

import os
from io import StringIO
from pathlib import Path

from rich.console import Console
from textual.app import App

FOLDER = Path(__file__).parent.parent / "tui" / "chat" / "screens"


def screen_text(app: App[None]) -> str:
    """Return the characters on the screen, line by line, without trailing blanks."""
    width, height = app.size
    console = Console(width=width, height=height, file=StringIO(), force_terminal=True, record=True)
    update = app.screen._compositor.render_update(full=True)
    console.print(update)
    lines = console.export_text(styles=False).split("\n")[:height]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def assert_looks_like(app: App[None], name: str) -> None:
    """Compare with the committed file, or write it if told to."""
    file = FOLDER / f"{name}-{app.size.width}x{app.size.height}.txt"
    shown = screen_text(app)
    if os.environ.get("SPECDEC_UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8"), f"{file} shows something else"
