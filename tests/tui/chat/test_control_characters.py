"""Control characters in texts and names are shown by signs: nothing but Textual itself commands the terminal."""

import json
import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_app import answered, ask, chat_app, idle, screen_of, until
from support.scripted_session import ScriptedSession
from textual._compositor import LayoutUpdate
from textual.app import App
from textual.widgets import Input, TextArea

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.text import on_one_line, printable
from specdec_onnx.tui.chat import clipboard
from specdec_onnx.tui.chat.app import ChatApp
from specdec_onnx.tui.chat.engine_client import State
from specdec_onnx.tui.chat.inventory import LocalPair
from specdec_onnx.tui.chat.screens.history import HistoryScreen
from specdec_onnx.tui.chat.screens.settings import SettingsScreen
from specdec_onnx.tui.chat.session import Piece
from specdec_onnx.tui.chat.widgets.answer import AnswerView, token_content
from specdec_onnx.tui.chat.widgets.bars import JobBar
from specdec_onnx.tui.chat.widgets.markdown import Document, render, theme_styles

EVIL = "ev\x1b]52;c;aGk=\x07il\x9b31m\x00\x7f\u202e!"
SIGNS = "ev␛]52;c;aGk=␇il�31m␀␡�!"


def reached_the_screen(app: App[None]) -> str:
    """All characters of a whole frame, as they would be written."""
    update = app.screen._compositor.render_update(full=True)
    assert isinstance(update, LayoutUpdate)
    return "".join(segment.text for strip in update.strips for segment in strip)


def assert_harmless(text: str) -> None:
    bad = {c for c in text if unicodedata.category(c) in ("Cc", "Cs") or c in "\u202d\u202e\u2028"}
    assert not bad, f"{bad} in {text!r}"


async def assert_shown(app: ChatApp, what: str = SIGNS) -> None:
    await until(lambda: what in reached_the_screen(app))
    assert_harmless(reached_the_screen(app))


@given(st.text())
def test_every_text_becomes_harmless_and_keeps_its_letters(text: str) -> None:
    shown = printable(text)
    assert_harmless(shown.replace("\n", "").replace("\t", ""))
    assert [c for c in shown if c.isalnum()] == [c for c in text if c.isalnum()]
    assert "\n" not in on_one_line(text)


def test_line_ends_of_windows_are_line_ends() -> None:
    assert printable("one\r\ntwo\rthree\tfour\n") == "one\ntwo␍three\tfour\n"


async def test_questions_answers_titles_and_tokens_show_signs(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([f"{EVIL} said {EVIL}"]))
    async with app.run_test(size=(120, 30)) as pilot:
        await answered(app, EVIL)
        await assert_shown(app)
        for _ in range(2):
            await pilot.press("f3")
            app.clear_notifications()
            await pilot.pause()
            await assert_shown(app)
        await pilot.press("ctrl+e")
        await pilot.pause()
        await assert_shown(app)
        assert screen_of(app).prompt.text == EVIL, "the question itself stays as it was"


def test_the_trace_shows_signs_in_rejected_tokens_too() -> None:
    pieces = [Piece("\x1b[2J", "rejected"), Piece("a\r\nb", "draft"), Piece("\x07", "target")]
    assert token_content(pieces, [2], trace=True).plain == "␛[2Ja\nb␇│"


async def test_what_is_copied_is_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipboard, "copy", lambda text: True)
    answer = f"```\n{EVIL}\n```\n"
    app = chat_app(tmp_path, ScriptedSession([answer]))
    async with app.run_test() as pilot:
        screen = await answered(app, EVIL)
        await pilot.press("ctrl+y")
        assert app.clipboard == answer
        await pilot.press("ctrl+b")
        assert app.clipboard == EVIL.replace("\0", "\ufffd") + "\n", "as Markdown has it"
        await pilot.press("ctrl+t", "up", "c")
        assert app.clipboard == EVIL
        assert screen.query_one(AnswerView).text == answer


async def test_the_comparison_shows_signs(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([EVIL]))
    async with app.run_test(size=(120, 30)) as pilot:
        await answered(app, f"{EVIL}?")
        await pilot.press("f5")
        await until(lambda: "identical" in reached_the_screen(app))
        await assert_shown(app, f"A/B: {SIGNS}?")
        assert reached_the_screen(app).count(SIGNS) == 4, "the titles of chat and dialog, and both sides"


async def test_history_titles_snippets_and_searches_show_signs(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([f"a needle [0] {EVIL}"]))
    async with app.run_test(size=(120, 30)) as pilot:
        await answered(app, EVIL)
        await pilot.press("ctrl+n", "ctrl+f")
        await until(lambda: isinstance(app.screen, HistoryScreen))
        await assert_shown(app)
        await pilot.press(*"needle")
        await assert_shown(app, "a needle [0] ")
        app.screen.query_one(Input).value = f"needle {EVIL}"
        await assert_shown(app, f"needle {SIGNS}")
        await pilot.press("ctrl+r")
        await until(lambda: len(app.screen_stack) == 3)
        await assert_shown(app)


async def test_names_errors_and_messages_show_signs(tmp_path: Path) -> None:
    session = ScriptedSession(["x"])
    session.name = session.about = session.exactness = EVIL
    app = chat_app(tmp_path, opener=lambda pair, device, on_measure: session, notice=f"notice {EVIL}")
    async with app.run_test(size=(160, 40), notifications=True):
        screen = screen_of(app)
        app.services.engine.state = State("pair", session=session)
        screen.engine_changed()
        screen.query_one(JobBar).display = True
        screen.query_one(JobBar)._latest = (EVIL, 1, 2)
        screen.query_one(JobBar)._draw()
        screen.report(SpecdecError(f"what {EVIL}", f"why {EVIL}", f"fix {EVIL}"))
        screen.notify(EVIL, title=f"title {EVIL}", markup=False)
        for part in (f"notice {SIGNS}", f"what {SIGNS}", f"why {SIGNS}", f"fix {SIGNS}", f"title {SIGNS}"):
            await assert_shown(app, part)
        await assert_shown(app, f"plain: {SIGNS}")
        app.services.engine.state = State(f"folder/{EVIL}", error=SpecdecError("no"))
        screen.refresh_bars()
        await assert_shown(app, f"{SIGNS} can't be opened")


async def test_an_answer_that_failed_says_why_with_signs(tmp_path: Path) -> None:
    def opener(pair: str, device: str, on_measure: Callable[[], None]) -> ScriptedSession:
        raise SpecdecError(f"failed {EVIL}")

    app = chat_app(tmp_path, ScriptedSession([""]), opener=opener)
    async with app.run_test(size=(120, 30)):
        await ask(app)
        await idle(app)
        app.clear_notifications()
        await assert_shown(app, f"failed: failed {SIGNS}")


async def test_the_picker_shows_names_of_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = os.fsdecode(b"caf\xe9")
    pairs = [LocalPair(Path(odd), odd + EVIL, "w8a8"), LocalPair(Path("torn"), "torn", problem=EVIL)]
    monkeypatch.setattr("specdec_onnx.tui.chat.screens.models.local_pairs", lambda extra: pairs)
    app = chat_app(tmp_path, ScriptedSession([""]))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("ctrl+o")
        await assert_shown(app, f"caf�{SIGNS}")
        await assert_shown(app, f"can't be opened: {SIGNS}")


async def test_settings_show_signs_and_keep_what_they_stand_for(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([""]))
    async with app.run_test(size=(120, 30)) as pilot:
        screen = screen_of(app)
        before = screen.conversation.settings
        stops = ("\x1b[0m", "é", " END", "a,b", "\\n", "\n")
        odd = type(before)(system=EVIL, stop=stops, seed=5)
        screen.conversation.configure(odd, "")
        await pilot.press("f2")
        await until(lambda: isinstance(app.screen, SettingsScreen))
        await assert_shown(app)
        await pilot.press("ctrl+s")
        await until(lambda: app.screen is screen)
        assert screen.conversation.settings == odd


async def test_a_typed_text_is_wrapped_by_what_is_shown(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([""]))
    async with app.run_test(size=(40, 20)) as pilot:
        prompt = screen_of(app).prompt
        prompt.fill("\x1b" * 100)
        await pilot.pause()
        assert prompt.wrapped_document.height == 3
        await pilot.press("x", "backspace", "backspace")
        assert prompt.text == "\x1b" * 99
        await assert_shown(app, "␛" * 30)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *(
                    "<http://a/%1b",
                    "%07",
                    "%9b>",
                    "&#27;",
                    "&#13;",
                    "&#x202e;",
                    "&#8232;",
                    "`",
                    "```\n",
                    "[a](",
                ),
                *(")", "![", "](x%1b)", "\x1b", "\x9b", "\n", "\n\n", "| a |\n|--|\n|", "* ", "word "),
            ]
        ),
        max_size=12,
    ).map("".join)
)
def test_markdown_makes_no_control_characters_of_its_own(text: str) -> None:
    styles = theme_styles(App())
    for block in Document(printable(text), whole=True).blocks:
        assert_harmless("".join(line.margin.text + line.body.text for line in render(block, 40, styles)))


def test_a_link_that_spells_an_escape_is_shown_with_a_sign() -> None:
    lines = render(Document("<http://a/%1b]52;c;aGk=%07>", whole=True).blocks[0], 60, theme_styles(App()))
    assert lines[0].text.startswith("http://a/␛]52;c;aGk=␇ ")


async def test_an_imported_conversation_shows_signs(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["x"]))
    turns = [
        {"id": 1, "parent": None, "role": "user", "text": EVIL},
        {"id": 2, "parent": 1, "role": "assistant", "text": EVIL, "pieces": [[EVIL, "d"]], "reason": EVIL},
    ]
    body = {"format": "specdec-conversation", "version": 1, "title": f"t\n{EVIL}", "turns": turns, "head": 2}
    file = tmp_path / "evil.json"
    file.write_text(json.dumps(body))
    async with app.run_test(size=(120, 30)) as pilot:
        screen = screen_of(app)
        screen.action_import()
        await until(lambda: len(app.screen_stack) == 2)
        app.screen.query_one(Input).value = str(file)
        await pilot.press("enter")
        await until(lambda: len(screen.conversation.line) == 2)
        await assert_shown(app, f"t {SIGNS}")
        await pilot.press("f3")
        await assert_shown(app)


def test_the_prompt_is_such_a_field() -> None:
    """What TextArea does without ours, so that a change in Textual is noticed."""
    assert TextArea("\x1b").get_line(0).plain == "\x1b"
