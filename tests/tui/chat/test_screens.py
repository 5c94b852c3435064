"""Each screen at two sizes, as text; see tests/support/snapshots.py for how to update them."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.chat_app import answered, chat_app, idle, screen_of, until
from support.scripted_session import ScriptedSession
from support.snapshots import assert_looks_like
from textual.pilot import Pilot
from textual.widgets import Input

from specdec_onnx.tui.chat.app import ChatApp
from specdec_onnx.tui.chat.history.store import Store
from specdec_onnx.tui.chat.inventory import LocalPair
from specdec_onnx.tui.chat.widgets.prompt import Prompt

ANSWER = """Here is a function that reverses a string in C:

```c
void reverse(char *text) {
    size_t end = strlen(text);
    for (size_t start = 0; start < end--; start++) {
        char kept = text[start];
        text[start] = text[end];
        text[end] = kept;
    }
}
```

It works **in place**:

1. Put the text into an array.
2. Call `reverse(text)`.
"""
SIZES = [(80, 24), (120, 36)]
sizes = pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x36"])
Steps = Callable[[ChatApp, Pilot[None]], Awaitable[None]]


@pytest.fixture(autouse=True)
def same_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cursor that blinks, no folder, time or memory of the machine that runs the test."""
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    pairs = [
        LocalPair(Path("pairs/coder"), "coder", "w8a8 + int4", 2_030_000_000, 2_600_000_000),
        LocalPair(Path("pairs/small"), "small", "w8a8", 135_000_000, 200_000_000),
        LocalPair(Path("pairs/torn"), "torn", problem="no ONNX graph at pairs/torn/target/onnx/model.onnx"),
    ]
    monkeypatch.setattr("specdec_onnx.tui.chat.screens.models.local_pairs", lambda extra: pairs)
    monkeypatch.setattr(Store, "measured_speeds", lambda store: {"pairs/coder": 42.0})
    monkeypatch.setattr("specdec_onnx.tui.chat.inventory.available_memory", lambda: 8_000_000_000)
    monkeypatch.setattr(Prompt, "cursor_blink", False)
    monkeypatch.setattr(Input, "cursor_blink", False)


async def shown(
    tmp_path: Path, size: tuple[int, int], name: str, steps: Steps, *answers: str, model: bool = True
) -> None:
    app = chat_app(tmp_path, ScriptedSession(answers or [ANSWER]) if model else None)
    async with app.run_test(size=size) as pilot:
        if model:
            await until(lambda: app.services.engine.state.session)
        await pilot.pause(0.1)
        await steps(app, pilot)
        await pilot.pause(0.1)
        assert_looks_like(app, name)


async def ask(app: ChatApp, pilot: Pilot[None], text: str = "Reverse a string in C") -> None:
    await answered(app, text)
    await pilot.pause(0.1)


@sizes
async def test_empty_page(tmp_path: Path, size: tuple[int, int]) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.pause()

    await shown(tmp_path, size, "empty", steps)


@sizes
async def test_first_run(tmp_path: Path, size: tuple[int, int]) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await until(lambda: screen_of(app).query_one("#welcome-list").display)

    await shown(tmp_path, size, "first-run", steps, model=False)


@sizes
@pytest.mark.parametrize("presses", [0, 1, 2], ids=["text", "tokens", "trace"])
async def test_answer(tmp_path: Path, size: tuple[int, int], presses: int) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await ask(app, pilot)
        for _ in range(presses):
            await pilot.press("f3")
        app.clear_notifications()

    await shown(tmp_path, size, ("answer", "tokens", "trace")[presses], steps)


@sizes
async def test_branches(tmp_path: Path, size: tuple[int, int]) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await ask(app, pilot)
        await pilot.press("ctrl+r")
        await idle(app)
        await pilot.press("f4", "ctrl+t")

    await shown(tmp_path, size, "branches", steps, ANSWER, "Short.")


@sizes
@pytest.mark.parametrize(
    ("name", "key"), [("keys", "f1"), ("settings", "f2"), ("compare", "f5"), ("models", "ctrl+o")]
)
async def test_dialog(tmp_path: Path, size: tuple[int, int], name: str, key: str) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await ask(app, pilot)
        await pilot.press(key)
        await until(lambda: len(app.screen_stack) == 2)
        if name == "compare":
            await until(lambda: "identical" in str(app.screen.query_one("#verdict").render()))

    await shown(tmp_path, size, name, steps)


@sizes
async def test_history(tmp_path: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_onnx.tui.chat.screens.history.clock", lambda seconds: "2026-11-30 12:00")

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await ask(app, pilot)
        await pilot.press("ctrl+n")
        await ask(app, pilot, "What is a suffix automaton?")
        await pilot.press("ctrl+f")
        await until(lambda: len(app.screen_stack) == 2)
        await pilot.press(*"string")

    await shown(tmp_path, size, "history", steps)
