"""Asking: the answer streams, is saved, can be stopped, and never blocks the screen."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.chat_app import answered, ask, chat_app, idle, screen_of, under_way, until
from support.scripted_session import ScriptedSession
from textual import events

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.history.store import Store
from specdec_onnx.tui.chat.session import OnProgress, Request, Round
from specdec_onnx.tui.chat.widgets import prompt as prompt_module
from specdec_onnx.tui.chat.widgets.answer import AnswerView
from specdec_onnx.tui.chat.widgets.bars import StatisticsBar, TopBar
from specdec_onnx.tui.chat.widgets.markdown import AnswerText

TEXT = "Here is **one**:\n\n```python\nprint('hello')\n```\n\nand a word or two after it."
LONG = " ".join(f"word{number}" for number in range(80))


async def test_an_answer_streams_and_is_stored(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([TEXT]))
    async with app.run_test(size=(80, 24)):
        screen = await answered(app, "Show me one")
        answer = screen.query_one(AnswerView)
        assert answer.text == TEXT and answer.query_one(AnswerText).source == TEXT
        line = screen.conversation.line
        assert [turn.text for turn in line] == ["Show me one", TEXT] and line[1].reason == "eos"
        assert screen.conversation.title == "Show me one"
        assert line[1].statistics["pair"] == str(tmp_path / "models" / "scripted-pair")
        bar = screen.query_one(StatisticsBar)
        assert "42 tok/s · 13 tok · 4.0 tok/round · 75 % accepted · first token 0.3 s" in str(bar.render())
        assert screen.query_one(TopBar).used == 3 + 13
    assert Store(tmp_path / "history.sqlite3").branch(line[1].id)[1].text == TEXT


async def test_enter_sends_and_three_keys_make_a_new_line(tmp_path: Path) -> None:
    session = ScriptedSession(["fine"])
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        await until(lambda: app.services.engine.state.session)
        await pilot.press("a", "ctrl+j", "b", "alt+enter", "c", "shift+enter", "d", "enter")
        await until(lambda: session.requests)
        assert session.requests[0].messages == [{"role": "user", "content": "a\nb\nc\nd"}]
        assert screen_of(app).prompt.text == ""


async def test_what_is_too_long_to_edit_is_not_pasted(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        prompt = screen_of(app).prompt
        for text, taken in (
            ("x" * prompt_module.MAX_PASTED_LINE, True),
            ("x" * (prompt_module.MAX_PASTED_LINE + 1), False),
            ("line\n" * (prompt_module.MAX_PASTED // 5), True),
            ("line\n" * (prompt_module.MAX_PASTED // 5 + 1), False),
        ):
            prompt.fill("")
            app.clear_notifications()
            app.post_message(events.Paste(text))
            await until(lambda: prompt.text or any(note.title for note in app._notifications))
            await pilot.pause()
            assert (prompt.text == text) == taken
            assert [note.title for note in app._notifications] == ([] if taken else ["Too long to paste"])


async def test_an_answer_survives_any_size_of_the_terminal(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["word " * 100], pause=0.01))
    async with app.run_test() as pilot:
        screen = await under_way(app)
        for size in ((40, 10), (1, 1), (200, 60), (3, 30), (60, 2), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause(0.05)
        await idle(app)
        assert screen.query_one(AnswerView).text == "word " * 100


async def test_blank_questions_are_not_sent(tmp_path: Path) -> None:
    session = ScriptedSession(["fine"])
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        await until(lambda: app.services.engine.state.session)
        await pilot.press("space", "enter", "ctrl+j", "enter")
        for blank in ("\u3000", "\u200b", "\0", "\u2028", "\x1b"):
            screen_of(app).prompt.fill(blank)
            await pilot.press("enter")
        assert session.requests == [] and screen_of(app).conversation.stored is None


async def test_up_recalls_earlier_questions_and_keeps_a_draft(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await answered(app, "first")
        await answered(app, "second")
        await pilot.press("up")
        assert screen.prompt.text == "second"
        await pilot.press("up", "up")
        assert screen.prompt.text == "first"
        await pilot.press("down", "down")
        assert screen.prompt.text == ""
        await pilot.press("x", "up")
        assert screen.prompt.text == "x"


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_stopping_keeps_the_text_so_far(tmp_path: Path, key: str) -> None:
    app = chat_app(tmp_path, ScriptedSession([LONG], hold_after=3))
    async with app.run_test() as pilot:
        screen = await under_way(app, 3)
        await pilot.press(key)
        await idle(app)
        answer = screen.conversation.line[-1]
        assert answer.text == " ".join(f"word{number}" for number in range(12)) + " "
        assert answer.reason == "cancelled"
        view = screen.query_one(AnswerView)
        assert str(view.query_one(".note").render()).startswith("stopped")
        await answered(app, "next one")
        assert len(screen.conversation.line) == 4


async def test_ctrl_c_without_an_answer_does_not_quit(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        await pilot.press("ctrl+c")
        assert app.is_running


async def test_while_an_answer_comes_the_next_question_waits_in_the_prompt(tmp_path: Path) -> None:
    session = ScriptedSession([LONG], hold_after=1)
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        screen = await under_way(app, 1)
        await pilot.press("h", "i", "enter")
        assert screen.prompt.text == "hi" and len(session.requests) == 1
        session.go_on.set()
        await idle(app)
        await pilot.press("enter")
        await until(lambda: len(session.requests) == 2)


async def test_a_question_asked_while_loading_is_answered_then(tmp_path: Path) -> None:
    loaded = asyncio.Event()
    session = ScriptedSession(["at last"])

    async def opener(pair: str, device: str, on_measure: Callable[[], None]) -> ScriptedSession:
        await loaded.wait()
        return session

    app = chat_app(tmp_path, session, opener=opener)
    async with app.run_test():
        screen = screen_of(app)
        await until(lambda: app.services.engine.state.loading)
        screen.prompt.fill("early")
        screen.prompt._submit()
        await until(
            lambda: "loading scripted-pair; the answer starts afterwards" in str(screen.prompt.border_title)
        )
        loaded.set()
        await idle(app)
        assert screen.conversation.line[-1].text == "at last"


async def test_a_question_can_be_taken_back_while_loading(tmp_path: Path) -> None:
    loaded = asyncio.Event()
    session = ScriptedSession(["never"])

    async def opener(pair: str, device: str, on_measure: Callable[[], None]) -> ScriptedSession:
        await loaded.wait()
        return session

    app = chat_app(tmp_path, session, opener=opener)
    async with app.run_test() as pilot:
        screen = screen_of(app)
        screen.prompt.fill("early")
        await until(lambda: app.services.engine.state.loading)
        screen.prompt._submit()
        await until(lambda: screen.answering.busy)
        await pilot.press("escape")
        await idle(app)
        loaded.set()
        await until(lambda: app.services.engine.state.session)
        assert session.requests == [] and screen.conversation.line[-1].reason == "cancelled"


class Counting(ScriptedSession):
    """Notes how the garbage collector is set while an answer comes."""

    async def reply(self, request: Request, on_progress: OnProgress) -> AsyncIterator[Round]:
        async for step in super().reply(request, on_progress):
            self.old = gc.get_threshold()[2]
            yield step


async def test_no_full_garbage_collection_while_an_answer_comes(tmp_path: Path) -> None:
    session, before = Counting(["fine"]), gc.get_threshold()
    app = chat_app(tmp_path, session)
    async with app.run_test():
        await answered(app)
        assert session.old > 1000 * before[2] and gc.get_threshold() == before
        assert gc.get_freeze_count() > 10_000, "what was imported is not gone through again"


async def test_reading_the_prompt_shows_progress(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([LONG], hold_after=0))
    async with app.run_test():
        screen = await ask(app, "one two three")
        await until(lambda: "reading the conversation: 3 of 3 tokens" in str(screen.prompt.border_title))


async def test_the_prompt_is_drawn_again_only_when_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = await answered(app)
        drawn: list[bool] = []
        monkeypatch.setattr(screen.prompt, "refresh", lambda *regions, **how: drawn.append(True))
        screen.refresh_bars()
        assert not drawn
        await pilot.press("ctrl+e")
        assert drawn


async def test_a_pair_that_fails_to_open_says_why(tmp_path: Path) -> None:
    def opener(pair: str, device: str, on_measure: Callable[[], None]) -> ScriptedSession:
        raise SpecdecError("the graph is broken", "it was cut short", "export it again")

    app = chat_app(tmp_path, ScriptedSession([""]), opener=opener)
    async with app.run_test():
        screen = await answered(app)
        assert screen.conversation.line[-1].reason == "error"
        notes = [(note.title, note.message) for note in app._notifications]
        assert ("the graph is broken", "it was cut short\nexport it again") in notes
        note = screen.query_one(AnswerView).query_one(".note")
        assert str(note.render()) == "failed: the graph is broken", "the message is gone after a while"


async def test_the_view_follows_until_the_reader_scrolls_up(tmp_path: Path) -> None:
    text = "\n\n".join(f"paragraph {number}" for number in range(60))
    session = ScriptedSession([text], hold_after=20)
    app = chat_app(tmp_path, session)
    async with app.run_test(size=(60, 20)) as pilot:
        screen = await under_way(app, 20)
        transcript = screen.transcript
        await pilot.pause(0.2)
        assert transcript.scroll_y == transcript.max_scroll_y > 10
        await pilot.press("pageup", "pageup")
        held = transcript.scroll_y
        session.go_on.set()
        await idle(app)
        assert transcript.scroll_y == held < transcript.max_scroll_y
        for _ in range(20):
            await pilot.press("pagedown")
        assert transcript.scroll_y == transcript.max_scroll_y
        await answered(app, "again")
        await pilot.pause(0.2)
        assert transcript.scroll_y == transcript.max_scroll_y


async def test_markup_and_escapes_in_a_question_are_plain_text(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["[bold]x[/] \x1b[31mred"]))
    async with app.run_test():
        screen = await answered(app, "[red]not markup[/red] [")
        assert "[red]not markup[/red] [" in str(screen.query_one(".question-text").render())
        assert "\x1b" not in app.export_screenshot()


async def test_a_pair_that_could_not_be_opened_is_tried_again_with_the_next_question(tmp_path: Path) -> None:
    tries: list[str] = []

    def opener(pair: str, device: str, on_measure: Callable[[], None]) -> ScriptedSession:
        tries.append(pair)
        if len(tries) == 1:
            raise SpecdecError("The engine has stopped.", "killed", "Ask again.")
        return ScriptedSession(["at last"])

    app = chat_app(tmp_path, ScriptedSession(["x"]), opener=opener)
    async with app.run_test():
        await until(lambda: app.services.engine.state.error)
        screen = screen_of(app)
        screen.prompt.fill("Question")
        screen.prompt._submit()
        await until(lambda: screen.conversation.line and screen.conversation.line[-1].text == "at last")
        assert len(tries) == 2


async def test_the_context_meter_counts_the_conversation_while_an_answer_comes(tmp_path: Path) -> None:
    session = ScriptedSession(["one two three four five six seven eight", LONG], hold_after=1)
    app = chat_app(tmp_path, session)
    async with app.run_test():
        session.go_on.set()
        screen = await answered(app, "a b c")
        before = screen.query_one(TopBar).used
        assert before == 3 + 8
        session.go_on.clear()
        await under_way(app, 1)
        await until(lambda: screen.query_one(TopBar).used > before)
        session.go_on.set()
        await idle(app)
