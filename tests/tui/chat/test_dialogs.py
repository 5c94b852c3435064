"""History, files, models and settings."""

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from support.chat_app import answered, chat_app, screen_of, stored_text, under_way, until
from support.scripted_session import ScriptedSession
from support.snapshots import screen_text
from textual.widgets import Input, OptionList, TextArea
from textual.widgets._toast import Toast

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.text import gigabytes
from specdec_onnx.tui.chat.app import ChatApp
from specdec_onnx.tui.chat.history.store import Store
from specdec_onnx.tui.chat.inventory import LocalPair
from specdec_onnx.tui.chat.screens.chat import ChatScreen
from specdec_onnx.tui.chat.screens.dialogs import AskScreen
from specdec_onnx.tui.chat.screens.history import HistoryScreen
from specdec_onnx.tui.chat.screens.models import ModelsScreen
from specdec_onnx.tui.chat.screens.settings import SettingsScreen
from specdec_onnx.tui.chat.widgets.welcome import Welcome


async def talked(app: ChatApp, *questions: str) -> ChatScreen:
    """One conversation for each question."""
    for question in questions:
        await screen_of(app).action_new()
        await answered(app, question)
    return screen_of(app)


def titles(app: ChatApp) -> list[str]:
    return [summary.title for summary in app.services.store.recent()]


async def test_new_starts_an_empty_page_and_keeps_the_settings(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await talked(app, "First")
        await pilot.press("f4", "ctrl+n")
        assert screen.conversation.line == [] and not screen.conversation.settings.speculate
        assert screen.query_one(Welcome).display and not screen.transcript.display
        assert titles(app) == ["First"], "an empty page is not stored"


async def test_leaving_for_a_new_page_mid_answer_keeps_the_text_so_far(tmp_path: Path) -> None:
    session = ScriptedSession(["word " * 40], hold_after=2)
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        screen = await under_way(app)
        await pilot.press("ctrl+n")
        await until(lambda: not screen.answering.busy and screen.conversation.line == [])
        assert titles(app) == ["Question"]
        rows = app.services.store.rows("SELECT text, reason FROM turn WHERE role = 'assistant'")
        assert rows == [("word " * 8, "cancelled")]


async def test_history_is_searched_as_one_types_and_opened_with_enter(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["apples", "pears", "plums"]))
    async with app.run_test() as pilot:
        screen = await talked(app, "First fruit", "Second fruit", "Third fruit")
        await pilot.press("ctrl+f")
        await until(lambda: isinstance(app.screen, HistoryScreen))
        found = app.screen.query_one("#results", OptionList)
        assert [option.id for option in found.options] == [
            summary.id for summary in app.services.store.recent()
        ]
        await pilot.press(*"fruit")
        await pilot.press("down", "up", "down")
        assert found.highlighted == 1
        app.screen.query_one(Input).value = "pear"
        await until(lambda: found.option_count == 1)
        await pilot.press("enter")
        await until(lambda: app.screen is screen)
        await until(lambda: [turn.text for turn in screen.conversation.line] == ["Second fruit", "pears"])


async def test_history_renames_and_deletes_after_a_second_press(tmp_path: Path) -> None:
    stored = stored_text()
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await talked(app, "First", "Second")
        await pilot.press("ctrl+f")
        await until(lambda: isinstance(app.screen, HistoryScreen))
        await pilot.press("down", "ctrl+r")
        await until(lambda: isinstance(app.screen, AskScreen))
        await pilot.press(*"Renamed", "enter")
        await until(lambda: titles(app) == ["Second", "Renamed"])
        await until(lambda: isinstance(app.screen, HistoryScreen))
        app.screen.query_one("#results", OptionList).highlighted = 0
        await pilot.press("ctrl+d")
        assert titles(app) == ["Second", "Renamed"] and stored.exists()
        await pilot.press("ctrl+d")
        assert titles(app) == ["Renamed"] and not stored.exists()
        await pilot.press("escape")
        await until(lambda: app.screen is screen and screen.conversation.stored is None)


async def test_rename_through_the_dialog(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await talked(app, "First")
        screen.action_rename()
        await until(lambda: isinstance(app.screen, AskScreen))
        await pilot.press(*"Fruit", "enter")
        await until(lambda: screen.conversation.title == "Fruit")


async def test_export_and_import_round_trip(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["# Heading\n\ntext"]))
    async with app.run_test() as pilot:
        screen = await talked(app, "Ask")
        for kind, file in (("markdown", "a.md"), ("json", "a.json")):
            screen.action_export(kind)
            await until(lambda: isinstance(app.screen, AskScreen))
            assert app.screen.query_one(Input).value == f"Ask.{'md' if kind == 'markdown' else 'json'}"
            app.screen.query_one(Input).value = str(tmp_path / file)
            await pilot.press("enter")
            await until((tmp_path / file).exists)
        assert (
            tmp_path / "a.md"
        ).read_text() == "# Ask\n\n## You\n\nAsk\n\n## Assistant\n\n# Heading\n\ntext\n"
        assert json.loads((tmp_path / "a.json").read_text())["turns"][1]["text"] == "# Heading\n\ntext"
        screen.action_import()
        await until(lambda: isinstance(app.screen, AskScreen))
        app.screen.query_one(Input).value = str(tmp_path / "a.json")
        await pilot.press("enter")
        await until(lambda: len(titles(app)) == 2)
        await until(lambda: [turn.text for turn in screen.conversation.line] == ["Ask", "# Heading\n\ntext"])


async def test_export_never_overwrites_and_import_says_what_is_wrong(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await talked(app, "Ask")
        kept = tmp_path / "kept.md"
        kept.write_text("mine")
        screen.action_export("markdown")
        await until(lambda: isinstance(app.screen, AskScreen))
        app.screen.query_one(Input).value = str(kept)
        await pilot.press("enter")
        await until(lambda: any("already exists" in note.title for note in app._notifications))
        assert kept.read_text() == "mine"
        screen.action_import()
        await until(lambda: isinstance(app.screen, AskScreen))
        app.screen.query_one(Input).value = str(kept)
        await pilot.press("enter")
        await until(lambda: any("not a conversation" in note.title for note in app._notifications))
        assert titles(app) == ["Ask"]


@pytest.mark.parametrize("action", ["import", "export('json')"])
@pytest.mark.parametrize(
    "path", ["~nobody-of-that-name/x", os.devnull, "/no/such/folder/x", "x" * 300, ".", "a\0b/c"]
)
async def test_a_path_that_leads_nowhere_is_an_error_and_the_chat_goes_on(
    tmp_path: Path, action: str, path: str
) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await talked(app, "Ask")
        await screen.run_action(action)
        await until(lambda: isinstance(app.screen, AskScreen) and app.screen.query(Input))
        app.screen.query_one(Input).value = path
        await pilot.press("enter")
        await until(lambda: any(note.severity == "error" for note in app._notifications))
        await answered(app, "Ask again")


async def test_an_export_that_does_not_fit_on_the_disk_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    real = Path.open

    def full(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name != "new.md":
            return real(path, *args, **kwargs)
        path.touch(exist_ok=False)
        return Full()

    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await talked(app, "Ask")
        screen.action_export("markdown")
        await until(lambda: isinstance(app.screen, AskScreen))
        app.screen.query_one(Input).value = str(tmp_path / "new.md")
        monkeypatch.setattr(Path, "open", full)
        await pilot.press("enter")
        await until(lambda: any("No space left" in note.message for note in app._notifications))
        assert not (tmp_path / "new.md").exists()


async def test_a_history_that_cannot_be_changed_says_so(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        await talked(app, "First", "Second")
        app.services.store.connection.execute("PRAGMA busy_timeout = 50")
        other = Store(tmp_path / "history.sqlite3")
        other.rows("BEGIN IMMEDIATE")
        await pilot.press("ctrl+f")
        await until(lambda: isinstance(app.screen, HistoryScreen))
        await pilot.press("ctrl+d", "ctrl+d")
        await until(lambda: any("locked" in note.message for note in app._notifications))
        other.rows("ROLLBACK")
        other.close()
        await pilot.press("ctrl+d", "ctrl+d")
        await until(lambda: titles(app) == ["First"])


async def test_settings_are_kept_with_the_conversation(tmp_path: Path) -> None:
    session = ScriptedSession(["fine"])
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        screen = await talked(app, "First")
        await pilot.press("f2")
        await until(lambda: isinstance(app.screen, SettingsScreen))
        form = app.screen
        form.query_one("#system", TextArea).text = "Be brief."
        form.query_one("#temperature", Input).value = "0.7"
        form.query_one("#seed", Input).value = "3"
        form.query_one("#stop", Input).value = "END, \\n\\n"
        await pilot.press("ctrl+s")
        await until(lambda: app.screen is screen)
        settings = screen.conversation.settings
        assert (settings.system, settings.temperature, settings.seed) == ("Be brief.", 0.7, 3)
        assert settings.stop == ("END", "\n\n")
        await answered(app, "Second")
        assert session.requests[1].messages[0] == {"role": "system", "content": "Be brief."}
        assert session.requests[1].settings.temperature == 0.7
    again = chat_app(tmp_path, session, open_latest=True)
    async with again.run_test():
        await until(lambda: screen_of(again).conversation.settings.system == "Be brief.")


async def test_settings_out_of_range_are_refused_with_the_reason(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        await until(lambda: app.services.engine.state.session)
        await pilot.press("f2")
        await until(lambda: isinstance(app.screen, SettingsScreen))
        for name, value, words in (
            ("top_p", "2", "Top p: from 0 to 1"),
            ("top_k", "x", "Top k: enter a whole number"),
        ):
            app.screen.query_one(f"#{name}", Input).value = value
            await pilot.press("ctrl+s")
            assert words in str(app.screen.query_one("#problem").render())
            app.screen.query_one(f"#{name}", Input).value = "1"
        await pilot.press("escape")
        await until(lambda: not isinstance(app.screen, SettingsScreen))


async def test_the_model_picker_lists_and_opens(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    pairs = [
        LocalPair(tmp_path / "a", "a", "w8a8 + int4", 2_000_000_000, 2_600_000_000),
        LocalPair(tmp_path / "b", "b", problem="no ONNX graph"),
    ]
    monkeypatch.setattr("specdec_onnx.tui.chat.screens.models.local_pairs", lambda extra: pairs)
    monkeypatch.setattr("specdec_onnx.tui.chat.inventory.available_memory", lambda: 1_000_000_000)
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        await until(lambda: app.services.engine.state.session)
        await pilot.press("ctrl+o")
        await until(lambda: isinstance(app.screen, ModelsScreen))
        models = app.screen.query_one("#models", OptionList)
        lines = [str(option.prompt) for option in models.options]
        assert "w8a8 + int4 · 2.0 GB on disk · 2.6 GB memory, 1.0 GB available" in lines[1]
        assert "not measured yet" in lines[1] and "can't be opened: no ONNX graph" in lines[2]
        assert models.options[2].disabled
        assert any("Qwen2.5-Coder" in line and "Apache-2.0" in line for line in lines)
        await pilot.press("enter")
        await until(lambda: app.services.engine.state.pair == str(tmp_path / "a"))
        assert app.services.preferences.model == str(tmp_path / "a")


async def test_a_message_never_covers_the_prompt(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test(size=(80, 24), notifications=True):
        screen = await talked(app, "First")
        screen.notify("one\ntwo\nthree", title="A title", severity="error")
        await until(lambda: app.screen.query(Toast))
        await until(lambda: app.screen.query_one(Toast).region.height)
        assert not app.screen.query_one(Toast).region.overlaps(screen.prompt.region)
        assert not app.screen.query_one(Toast).region.overlaps(screen.query_one("#statistics").region)


@pytest.mark.parametrize("size", [(100, 30), (80, 24), (60, 20)])
async def test_a_message_never_covers_a_dialog(tmp_path: Path, size: tuple[int, int]) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test(size=size, notifications=True) as pilot:
        screen = screen_of(app)
        screen.report(SpecdecError("The device can't be used.", "It lacks a driver. " * 4, "Get one. " * 4))
        await pilot.press("f2")
        await until(lambda: isinstance(app.screen, SettingsScreen))
        await until(lambda: app.screen.query(Toast) and app.screen.query_one(Toast).region.height > 2)
        await pilot.pause(0.2)
        dialog = app.screen.query_one(".dialog")
        assert dialog.region.height >= 12
        assert not app.screen.query_one(Toast).region.overlaps(dialog.region)


async def test_on_a_tiny_terminal_prompt_and_conversation_have_the_room(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["line\n\n" * 20]))
    async with app.run_test(size=(40, 10)) as pilot:
        screen = await talked(app, "日本語の質問 and a question that is much longer than a line")
        screen.prompt.fill("line\n" * 20)
        await pilot.pause(0.2)
        assert screen.transcript.region.height >= 4 and screen.prompt.region.height <= 5
        screen.prompt.fill("")
        await pilot.pause(0.2)
        assert screen.transcript.region.height == 6 and screen.prompt.region.bottom == 10
        assert screen.query_one("#top").region.height == 1
        top = screen_text(app).splitlines()[0]
        assert cell_len(top) <= 40 and "scripted" in top and top.endswith(" %") and "日" in top
        await pilot.resize_terminal(80, 24)
        await pilot.pause(0.2)
        assert screen.query_one("#statistics").region.height == 1


@pytest.mark.parametrize("key", ["f1", "f2", "f5", "ctrl+o", "ctrl+f", "ctrl+p"])
async def test_every_dialog_opens_and_closes_on_a_tiny_terminal(tmp_path: Path, key: str) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test(size=(40, 10)) as pilot:
        screen = await talked(app, "First")
        await pilot.press(key)
        await until(lambda: len(app.screen_stack) == 2)
        await pilot.pause(0.1)
        for size in ((5, 3), (1, 1), (40, 10)):
            await pilot.resize_terminal(*size)
            await pilot.pause(0.1)
        await pilot.press("escape")
        await until(lambda: app.screen is screen)


async def test_speeds_are_measured_from_answers(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test():
        await talked(app, "First", "Second")
        assert app.services.store.measured_speeds() == {str(tmp_path / "models" / "scripted-pair"): 42.0}


def test_sizes_are_given_in_round_numbers() -> None:
    assert gigabytes(1_640_000_000) == "1.6 GB" and gigabytes(135_000_000) == "135 MB"
