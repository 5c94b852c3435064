"""Regenerate, edit, go on, delete, branches, copy."""

import sys
import threading
from pathlib import Path

import pytest
from support.chat_app import answered, chat_app, idle, screen_of, stored_text, under_way, until
from support.scripted_session import ScriptedSession
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.selection import Selection
from textual.widgets import Button
from textual.widgets._footer import FooterKey
from textual.widgets._toast import Toast

from specdec_onnx.tui.chat import clipboard
from specdec_onnx.tui.chat.app import ChatApp
from specdec_onnx.tui.chat.history.store import Store
from specdec_onnx.tui.chat.screens.chat import ChatScreen
from specdec_onnx.tui.chat.screens.dialogs import SecondPress
from specdec_onnx.tui.chat.widgets.answer import AnswerView, QuestionView
from specdec_onnx.tui.chat.widgets.lines import Line
from specdec_onnx.tui.chat.widgets.markdown import AnswerText, Block, Styles, render
from specdec_onnx.tui.chat.widgets.welcome import Welcome

CODE = "First:\n\n```c\nint a;\n```\n\nthen\n\n```\nplain\n```\n"


def texts(screen: ChatScreen) -> list[str]:
    return [turn.text for turn in screen.conversation.line]


async def press(app: ChatApp, pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()
    await idle(app)


async def test_regenerating_makes_a_version_beside_the_old_one(tmp_path: Path) -> None:
    session = ScriptedSession(["one", "two"])
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        screen = await answered(app)
        await press(app, pilot, "ctrl+r")
        assert texts(screen) == ["Question", "two"]
        assert session.requests[0].messages == session.requests[1].messages
        assert "‹ 2/2 ›" in str(screen.query_one(AnswerView).query_one(".note").render())
        await press(app, pilot, "alt+left")
        assert texts(screen) == ["Question", "one"]
        assert "‹ 1/2 ›" in str(screen.query_one(AnswerView).query_one(".note").render())
        await press(app, pilot, "alt+left")
        assert texts(screen) == ["Question", "one"]
        await press(app, pilot, "alt+right")
        assert texts(screen) == ["Question", "two"]


async def test_editing_asks_again_on_another_branch(tmp_path: Path) -> None:
    session = ScriptedSession(["one", "two", "three"])
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        screen = await answered(app, "First", "Second")
        await press(app, pilot, "ctrl+t", "up", "up", "e")
        assert screen.prompt.text == "First" and screen.turns.editing is not None
        assert str(screen.prompt.border_title) == "editing a question"
        screen.prompt.fill("Changed")
        await press(app, pilot, "enter")
        assert texts(screen) == ["Changed", "three"]
        await press(app, pilot, "alt+left")
        assert texts(screen) == ["First", "one", "Second", "two"]


async def test_that_an_answer_is_under_way_is_said_once_and_until_it_ends(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["word " * 40], hold_after=2))
    app.NOTIFICATION_TIMEOUT = 3600  # what goes does not go by itself
    async with app.run_test(notifications=True) as pilot:
        screen = await under_way(app)
        screen.notify("another")
        await pilot.press("ctrl+r", "ctrl+r")
        await until(lambda: len(screen.query(Toast)) == 2)
        assert [note.title for note in app._notifications] == ["", "An answer is under way"]
        await press(app, pilot, "escape")
        await until(lambda: len(screen.query(Toast)) == 1)
        assert [note.message for note in app._notifications] == ["another"]


async def test_escape_leaves_editing(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["one"]))
    async with app.run_test() as pilot:
        screen = await answered(app)
        screen.prompt.fill("half a thought")
        await press(app, pilot, "ctrl+e")
        assert screen.prompt.text == "Question"
        await press(app, pilot, "escape")
        assert screen.prompt.text == "half a thought" and screen.turns.editing is None
        assert texts(screen) == ["Question", "one"]


async def test_going_on_continues_the_same_answer(tmp_path: Path) -> None:
    text = " ".join(f"word{number}" for number in range(20))
    session = ScriptedSession([text], hold_after=2)
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        screen = await under_way(app, text="Count")
        await press(app, pilot, "escape")
        part = texts(screen)[1]
        assert text.startswith(part) and part != text
        session.go_on.clear()
        session._hold = 0
        await pilot.press("ctrl+g")
        await until(lambda: "reading the conversation" in str(screen.prompt.border_title))
        assert not screen.query_one(AnswerView).query_one(".note").display, "it has not ended any more"
        session.go_on.set()
        await idle(app)
        assert texts(screen) == ["Count", text]
        assert session.requests[1].partial == part
        assert screen.query_one(AnswerView).text == text
        assert (
            "".join(piece.text for piece in screen.conversation.line[1].pieces if piece.source != "rejected")
            == text
        )
        await press(app, pilot, "ctrl+g")
        assert len(session.requests) == 2, "a complete answer is not continued"


async def test_deleting_a_turn_takes_what_followed(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["one", "two"]))
    async with app.run_test() as pilot:
        screen = await answered(app, "First", "Second")
        await press(app, pilot, "ctrl+t", "up", "d")
        assert len(texts(screen)) == 4, "not yet"
        await press(app, pilot, "d")
        assert texts(screen) == ["First", "one"]
        assert len(screen.query(QuestionView)) == 1
        await press(app, pilot, "ctrl+t", "up", "delete", "delete")
        assert texts(screen) == [] and not screen.transcript.display


def test_each_press_has_its_own_time_to_be_confirmed_in() -> None:
    now = 0.0
    press = SecondPress(lambda: now)
    assert not press.confirms("turn")
    now = 7.0
    assert not press.confirms("other"), "a press for something else is a first one"
    now = 8.5
    assert press.confirms("other"), "the end of the first press's time does not end that of the second"
    assert not press.confirms("other"), "a third press asks again"
    now = 17.0
    assert not press.confirms("other"), "too late"
    press.forget()
    assert not press.confirms("other")


async def test_an_old_press_to_delete_does_not_take_back_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec_onnx.tui.chat.screens.dialogs.SECONDS_TO_CONFIRM", 1.0)
    app = chat_app(tmp_path, ScriptedSession(["one", "two"]))
    async with app.run_test() as pilot:
        screen = await answered(app, "First", "Second")
        await press(app, pilot, "ctrl+t", "d", "up", "d")
        await pilot.pause(0.7)
        await press(app, pilot, "up", "d")
        await pilot.pause(0.6)
        await press(app, pilot, "d")
        assert texts(screen) == ["First"]


async def test_a_conversation_is_deleted_when_asked_twice(tmp_path: Path) -> None:
    stored = stored_text()
    app = chat_app(tmp_path, ScriptedSession(["one"]))
    async with app.run_test():
        screen = await answered(app, "First")
        await screen.action_delete_conversation()
        assert texts(screen) == ["First", "one"] and stored.exists()
        await screen.action_delete_conversation()
        assert texts(screen) == [] and app.services.store.latest() is None and not stored.exists()


@pytest.mark.parametrize("width", [120, 100, 80, 60, 40])
async def test_the_footer_shows_whole_keys_only_those_of_a_selected_turn_first(
    tmp_path: Path, width: int
) -> None:
    app = chat_app(tmp_path, ScriptedSession(["one"]))
    async with app.run_test(size=(width, 24)) as pilot:
        screen = await answered(app)
        for keys in ((), ("ctrl+t",), ("escape",)):
            await pilot.press(*keys)
            await pilot.pause(0.2)
            shown = [key for key in screen.query(FooterKey) if not key.has_class("-command-palette")]
            palette = screen.query_one("FooterKey.-command-palette")
            assert shown and all(key.region.right <= palette.region.x for key in shown)
            assert (shown[0].description == "Copy") == (keys == ("ctrl+t",))
        await pilot.resize_terminal(150, 24)
        await until(lambda: len(screen.query(FooterKey)) == 8)


async def test_a_click_selects_a_turn_and_a_letter_acts_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipboard, "copy", lambda text: True)
    app = chat_app(tmp_path, ScriptedSession(["one", "two"]))
    async with app.run_test() as pilot:
        await answered(app, "First", "Second")
        await pilot.click(AnswerView)
        await press(app, pilot, "c")
        assert app.clipboard == "one"
        await press(app, pilot, "escape", "ctrl+y")
        assert app.clipboard == "two"


async def test_code_blocks_are_copied_last_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr(clipboard, "copy", lambda text: bool(taken.append(text)))
    app = chat_app(tmp_path, ScriptedSession([CODE]))
    async with app.run_test() as pilot:
        await answered(app)
        await press(app, pilot, "ctrl+b")
        assert app.clipboard == "plain\n"
        await press(app, pilot, "ctrl+b")
        assert app.clipboard == "int a;\n"
        await app.workers.wait_for_complete()
        assert taken == ["plain\n", "int a;\n"]


async def test_nothing_changes_while_an_answer_comes(tmp_path: Path) -> None:
    session = ScriptedSession(["word " * 40], hold_after=1)
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        screen = await under_way(app, 1)
        await pilot.press("ctrl+r", "ctrl+e", "ctrl+g", "alt+left")
        await screen.action_delete()
        assert len(session.requests) == 1 and len(screen.conversation.line) == 2
        assert screen.turns.editing is None


async def long_conversation(app: ChatApp, pilot: Pilot[None], questions: int) -> ChatScreen:
    """So many questions without answers, the last of them on view."""
    screen = screen_of(app)
    await until(lambda: app.services.engine.state.session)
    for number in range(questions):
        screen.conversation.ask(f"question {number}")
    await screen.transcript.show_branch(screen.conversation.line)
    await pilot.pause()
    return screen


async def show_earlier(screen: ChatScreen, pilot: Pilot[None], turns: int) -> None:
    """Press the button for earlier turns, after which there are so many."""
    await pilot.pause()
    screen.query_one("#earlier").focus()
    await pilot.press("enter")
    await until(lambda: len(screen.transcript.turns()) == turns)


async def test_long_conversations_open_with_their_end_and_show_the_rest_on_demand(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await long_conversation(app, pilot, 20)
        assert len(screen.transcript.turns()) == 24
        await show_earlier(screen, pilot, 40)
        assert not screen.query("#earlier")


async def test_a_conversation_that_grows_long_puts_its_beginning_away(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await long_conversation(app, pilot, 15)
        await show_earlier(screen, pilot, 30)
        await answered(app, "one")
        assert len(screen.transcript.turns()) == 32 and not screen.query("#earlier")
        await answered(app, "two")
        shown = [view.turn.id for view in screen.transcript.turns()]
        assert shown == [turn.id for turn in screen.conversation.line[-24:]]
        assert str(screen.query_one("#earlier", Button).label) == "▲ 10 earlier turns"
        await show_earlier(screen, pilot, 34)
        assert [view.turn.id for view in screen.transcript.turns()] == [
            t.id for t in screen.conversation.line
        ]


async def test_answers_of_this_session_come_back_from_the_beginning(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await answered(app, *(f"question {number}" for number in range(17)))
        await show_earlier(screen, pilot, 34)
        assert [answer.text for answer in screen.transcript.answers()] == ["fine"] * 17


async def test_earlier_turns_come_above_what_is_being_read(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await long_conversation(app, pilot, 20)
        screen.transcript.scroll_home(animate=False)
        await pilot.pause()
        first = screen.transcript.turns()[0]
        row = first.region.y
        await show_earlier(screen, pilot, 40)
        await pilot.pause(0.2)
        assert abs(first.region.y - row) <= 1, "the button above it may be gone"


async def test_ctrl_c_copies_what_is_selected(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["one two three"]))
    async with app.run_test() as pilot:
        screen = await answered(app)
        screen.selections = {screen.query_one(AnswerText): Selection(Offset(4, 0), Offset(7, 0))}
        await pilot.press("ctrl+c")
        assert app.clipboard == "two"


async def test_answers_are_rendered_before_they_are_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    rendering: list[bool] = []

    def noting(block: Block, width: int, styles: Styles) -> list[Line]:
        rendering.append(threading.current_thread() is threading.main_thread())
        return render(block, width, styles)

    async with app.run_test(size=(77, 24)):
        screen = screen_of(app)
        monkeypatch.setattr("specdec_onnx.tui.chat.widgets.markdown.render", noting)
        for number in range(8):
            answer = screen.conversation.ask(f"question {number}")
            app.services.store.update(answer.id, "One.\n\nTwo.", "eos", [], {})
        screen.conversation.reload()
        await screen.transcript.show_branch(screen.conversation.line)
        await until(lambda: screen.query(AnswerText).last().size.height == 3)
        assert rendering == [False] * 16, "none on the event loop, none twice"


@pytest.mark.parametrize("keys", [("alt+left",), ("alt+right",), ("ctrl+t", "d", "d")])
@pytest.mark.parametrize("all_of_it", [True, False])
async def test_a_turn_that_another_chat_deleted_can_be_walked_over_and_deleted(
    tmp_path: Path, keys: tuple[str, ...], all_of_it: bool
) -> None:
    app = chat_app(tmp_path, ScriptedSession(["one", "two"]))
    async with app.run_test() as pilot:
        screen = await answered(app, "First", "Second")
        other, stored = Store(tmp_path / "history.sqlite3"), screen.conversation.stored
        assert stored is not None
        if all_of_it:
            other.delete(stored.id)
        else:
            other.rows("DELETE FROM turn WHERE id = ?", screen.conversation.line[2].id)
        other.close()
        await press(app, pilot, *keys)
        screen.prompt.fill("Third")
        screen.prompt.focus()
        await press(app, pilot, "enter")
        if screen.prompt.text:  # only now has it been noticed, and said
            await press(app, pilot, "enter")
        await until(lambda: texts(screen)[-2:] == ["Third", "two"])


@pytest.mark.parametrize("cause", ["locked", "full"])
async def test_a_question_that_cannot_be_stored_stays_in_the_prompt_with_the_reason(
    tmp_path: Path, cause: str
) -> None:
    app = chat_app(tmp_path, ScriptedSession(["one"]))
    async with app.run_test() as pilot:
        screen = await answered(app, "First")
        connection = app.services.store.connection
        connection.execute("PRAGMA busy_timeout = 50")
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        other = Store(tmp_path / "history.sqlite3")
        if cause == "locked":
            other.rows("BEGIN IMMEDIATE")
        else:
            connection.execute(f"PRAGMA max_page_count = {pages}")
        question = "long " * 5000
        screen.prompt.fill(question)
        await press(app, pilot, "enter")
        assert any(cause in note.message for note in app._notifications)
        assert screen.prompt.text == question and texts(screen) == ["First", "one"]
        if cause == "locked":
            await press(app, pilot, "f4", "ctrl+t", "d", "d")
            assert texts(screen) == ["First", "one"], "nor is anything deleted"
            other.rows("ROLLBACK")
        else:
            connection.execute("PRAGMA max_page_count = 1000000")
        other.close()
        screen.prompt.focus()
        await press(app, pilot, "enter")
        await until(lambda: len(texts(screen)) == 4)


@pytest.mark.parametrize("key", ["enter", "ctrl+r", "ctrl+e"])
async def test_what_another_chat_deleted_is_an_error_and_the_chat_goes_on(tmp_path: Path, key: str) -> None:
    app = chat_app(tmp_path, ScriptedSession(["one", "two"]))
    async with app.run_test() as pilot:
        screen = await answered(app, "First")
        other = Store(tmp_path / "history.sqlite3")
        assert screen.conversation.stored is not None
        other.delete(screen.conversation.stored.id)
        other.close()
        screen.prompt.fill("Second")
        await press(app, pilot, key, *(["enter"] if key == "ctrl+e" else []))
        await until(lambda: not texts(screen))
        assert screen.query_one(Welcome).display
        assert screen.prompt.text == ("First" if key == "ctrl+e" else "Second"), "nothing typed is lost"
        await answered(app, "Third")
        assert texts(screen)[0] == "Third"


@pytest.mark.skipif(sys.platform == "win32", reason="a file in use can't be deleted there")
async def test_a_history_deleted_during_an_answer_is_said_and_the_conversation_kept(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["word " * 40, "again"], hold_after=2))
    async with app.run_test(notifications=True) as pilot:
        screen = await under_way(app)
        for file in tmp_path.glob("history.sqlite3*"):
            file.unlink()
        await press(app, pilot, "escape")
        await until(lambda: "The history was deleted" in [note.title for note in app._notifications])
        await answered(app, "And now?")
        assert texts(screen)[2:] == ["And now?", "again"]
    store = Store(tmp_path / "history.sqlite3")
    assert [turn.text for turn in store.turns(store.recent()[0].id)] == texts(screen)
