"""The README's pictures, taken from the real chat: `python tests/pictures.py PAIR` (repeat after a change of the screens)."""

import asyncio
import re
import sys
import tempfile
from pathlib import Path

from support.chat_app import chat_app, idle, screen_of, until
from textual.pilot import Pilot

from specdec_onnx.tui.chat.app import ChatApp
from specdec_onnx.tui.chat.engine_client import open_process
from specdec_onnx.tui.chat.screens.compare import CompareScreen

FOLDER = Path(__file__).resolve().parent.parent / ".github" / "images"
SIZE = (92, 26)
PATIENCE = 1200
QUESTION = """Add type hints and a one-line docstring to each method, and change nothing else:

class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()
"""


def save(app: ChatApp, name: str) -> None:
    """One still, without the web fonts that Textual would have the reader's browser fetch."""
    app.clear_notifications()
    picture = re.sub(r"@font-face \{.*?\}", "", app.export_screenshot(title="specdec chat"), flags=re.DOTALL)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")


async def take(app: ChatApp, pilot: Pilot[None]) -> None:
    """Ask, watch, look at the tokens, compare."""
    screen = screen_of(app)
    await until(lambda: app.services.engine.state.session, PATIENCE)
    screen.prompt.fill(QUESTION)
    await pilot.pause(0.3)
    save(app, "1-question")
    await pilot.press("enter")
    await until(lambda: screen.answering.reply and sum(screen.answering.reply.rounds) > 60, PATIENCE)
    await pilot.pause(0.3)
    save(app, "2-answering")
    await until(lambda: not screen.answering.busy, PATIENCE)
    await idle(app)
    await pilot.pause(0.5)
    save(app, "3-answer")
    await pilot.press("f3")
    await pilot.pause(0.5)
    save(app, "4-tokens")
    await pilot.press("f5")
    await until(lambda: isinstance(app.screen, CompareScreen), PATIENCE)
    await until(lambda: "×" in str(app.screen.query_one("#verdict").render()), PATIENCE)
    await pilot.pause(0.5)
    save(app, "5-compare")


async def main(pair: Path) -> None:
    """Take all pictures with the pair at this path."""
    with tempfile.TemporaryDirectory() as home:
        app = chat_app(Path(home), opener=open_process)
        app.services.extra_pairs = [pair]
        async with app.run_test(size=SIZE) as pilot:
            await take(app, pilot)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
