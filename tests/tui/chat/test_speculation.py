"""What one sees of speculation: sources, sparkline, reasons, the A/B."""

from collections.abc import AsyncIterator
from pathlib import Path

from support.chat_app import answered, chat_app, idle, screen_of, under_way, until
from support.scripted_session import ScriptedSession
from support.snapshots import screen_text
from textual.widgets import Static

from specdec_onnx.tui.chat.reply import answer_note, figures, meter, sparkline, why_nothing_drafted, why_plain
from specdec_onnx.tui.chat.screens.compare import CompareScreen
from specdec_onnx.tui.chat.session import OnProgress, Piece, Request, Round
from specdec_onnx.tui.chat.widgets.answer import STYLES, AnswerView, TokenView, legend, token_content
from specdec_onnx.tui.chat.widgets.bars import StatisticsBar
from specdec_onnx.tui.chat.widgets.markdown import AnswerText

WORDS = "alpha beta gamma delta epsilon zeta eta theta"


def test_tokens_carry_the_style_of_their_source() -> None:
    pieces = [
        Piece("so ", "suffix"),
        Piece("it ", "draft"),
        Piece("was ", "rejected"),
        Piece("goes", "target"),
    ]
    shown = token_content(pieces)
    assert shown.plain == "so it goes"
    assert {(span.start, span.end, span.style) for span in shown.spans} >= {
        (0, 3, STYLES["suffix"]),
        (3, 6, STYLES["draft"]),
    }
    trace = token_content(pieces, [3], trace=True)
    assert trace.plain == "so it was goes│"
    assert (6, 10, STYLES["rejected"]) in [(span.start, span.end, span.style) for span in trace.spans]
    assert legend(pieces, trace=True).plain.startswith("text so far 1  draft model 1  target 1  rejected 1")


def test_sources_differ_without_colour_too() -> None:
    without_colour = {
        source: " ".join(word for word in style.split() if not word.startswith("$"))
        for source, style in STYLES.items()
    }
    assert len(set(without_colour.values())) == 4
    assert "underline" in without_colour["draft"] and "underline" in without_colour["suffix"]


def test_figures_and_meters() -> None:
    assert figures({"new_tokens": 3}) == "3 tok"
    full = {"decode_tokens_per_second": 8.26, "new_tokens": 214, "drafted": 9, "tokens_per_round": 3.14}
    full |= {"acceptance_rate": 0.714, "time_to_first_token_ms": 312}
    assert figures(full) == "8.3 tok/s · 214 tok · 3.1 tok/round · 71 % accepted · first token 0.3 s"
    assert answer_note("cancelled", {}) == "stopped" and answer_note(None, {}) == ""
    assert sparkline([1, 2, 8, 30], 3) == "▂██" and sparkline([1], 0) == ""
    assert meter(1024, 4096) == "▰▰▱▱▱▱▱▱ 25 %" and meter(9000, 4096).endswith("100 %")


def test_reasons() -> None:
    assert "F4 turns it on" in why_plain(False, ("plain", "auto"))
    assert (
        "supports only plain decoding" in why_plain(True, ("plain",))
        and why_plain(True, ("plain", "auto")) == ""
    )
    quiet = {"new_tokens": 100, "drafted": 0, "mode": "auto"}
    assert "no draft model" in why_nothing_drafted(quiet, ("plain", "suffix", "auto"))
    assert "measured to be faster" in why_nothing_drafted(quiet, ("plain", "draft", "auto"))
    assert "rejected" in why_nothing_drafted({**quiet, "drafted": 4, "accepted": 0}, ("draft",))
    assert why_nothing_drafted({**quiet, "new_tokens": 3}, ()) == ""


async def test_f3_shows_sources_then_the_trace_then_the_text(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([WORDS]))
    async with app.run_test() as pilot:
        screen = await answered(app)
        answer = screen.query_one(AnswerView)
        tokens = answer.query_one(TokenView)
        assert not tokens.display
        await pilot.press("f3")
        assert tokens.display and not answer.query_one(AnswerText).display
        assert tokens.plain.startswith(WORDS) and "perhaps" not in tokens.plain
        await pilot.press("f3")
        assert "alpha beta gamma perhaps delta │epsilon" in tokens.plain
        await pilot.press("f3")
        assert not tokens.display and answer.query_one(AnswerText).display


async def test_tokens_are_shown_while_they_come(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([WORDS], hold_after=1))
    async with app.run_test() as pilot:
        await pilot.press("f3")
        screen = await under_way(app, 1)
        await until(lambda: screen.query_one(TokenView).plain.startswith("alpha beta gamma delta"))
        assert not screen.query_one(AnswerText).display
        screen.services.engine.state.session.cancel()
        await idle(app)


async def test_the_tokens_follow_theme_and_width(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([WORDS * 5]))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await answered(app)
        await pilot.press("f3")
        await pilot.pause()
        tokens = screen.query_one(TokenView)

        def colour() -> object:
            return next(
                part.style.color for part in tokens.render_line(0) if "alpha" in part.text and part.style
            )

        before, lines = colour(), tokens.size.height
        app.theme = "textual-light"
        await pilot.resize_terminal(40, 24)
        await pilot.pause(0.2)
        assert colour() != before and tokens.size.height > lines


async def test_stored_answers_keep_their_tokens(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([WORDS]))
    async with app.run_test():
        await answered(app)
    again = chat_app(tmp_path, ScriptedSession([WORDS]), open_latest=True)
    async with again.run_test() as pilot:
        await until(lambda: screen_of(again).query(AnswerView))
        await pilot.press("f3", "f3")
        assert "perhaps" in screen_of(again).query_one(TokenView).plain
        assert "█" not in str(screen_of(again).query_one(StatisticsBar).render())
        assert "▄▄" in str(screen_of(again).query_one(StatisticsBar).render())


async def test_f4_answers_plainly_and_says_so(tmp_path: Path) -> None:
    session = ScriptedSession([WORDS])
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        await until(lambda: app.services.engine.state.session)
        await pilot.press("f4")
        screen = await answered(app)
        assert session.requests[0].mode == "plain"
        assert "F4 turns it on" in str(screen.query_one(StatisticsBar).render())
        await pilot.press("f4")
        assert "F4" not in str(screen.query_one(StatisticsBar).render())
        stored = (
            app.services.store.conversation(screen.conversation.stored.id)
            if screen.conversation.stored
            else None
        )
        assert stored is not None and stored.settings["speculate"] is True


async def test_a_model_without_draft_says_where_drafts_come_from(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([WORDS], modes=("plain", "suffix", "auto")))
    async with app.run_test(size=(100, 24)) as pilot:
        await until(lambda: app.services.engine.state.session)
        await pilot.pause()
        assert "no draft model" in str(screen_of(app).query_one(StatisticsBar).render())


async def test_the_comparison_runs_both_ways_on_the_same_prompt(tmp_path: Path) -> None:
    session = ScriptedSession([WORDS])
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        screen = await answered(app)
        await pilot.press("f5")
        await until(lambda: isinstance(app.screen, CompareScreen))
        verdict = app.screen.query_one("#verdict", Static)
        await until(lambda: "identical" in str(verdict.render()))
        assert "1.0 s plain, 0.5 s speculative: 2.00× as fast." in str(verdict.render())
        assert "identical (8 tok)" in str(verdict.render())
        plain, fast = session.requests[1:]
        assert (plain.mode, fast.mode) == ("plain", "auto") and plain.messages == fast.messages
        assert plain.fresh and fast.fresh, (
            "drafts from the answer just seen would make it look faster than it is"
        )
        assert plain.settings.temperature == fast.settings.temperature == 0
        await pilot.press("escape")
        assert len(screen.conversation.line) == 2, "the comparison leaves the conversation alone"


async def test_the_comparison_says_how_far_each_answer_is(tmp_path: Path) -> None:
    session = ScriptedSession([WORDS])
    app = chat_app(tmp_path, session)
    async with app.run_test(size=(120, 30)) as pilot:
        await answered(app)
        session._hold = 0
        session.go_on.clear()
        await pilot.press("f5")
        await until(lambda: "reading the prompt: 1 of 1 tok" in screen_text(app))
        assert "waiting for plain" in screen_text(app)
        assert "1 of 2: plain answers, at most 1,024 tok" in screen_text(app)
        session._hold, session._pause = 1, 0.3  # time to hold the second answer after its first round
        session.go_on.set()
        await until(lambda: str(app.screen.query_one("#plain").border_subtitle).startswith("8 tok · "))
        session.go_on.clear()
        await until(lambda: "4 of 8 tok · " in screen_text(app))
        assert "2 of 2: speculative answers" in screen_text(app)
        session.go_on.set()
        await until(lambda: "identical" in screen_text(app))
        assert [str(side.border_subtitle)[:8] for side in app.screen.query(".side")] == ["8 tok · "] * 2


class Differing(ScriptedSession):
    """Says something else when it speculates."""

    def reply(self, request: Request, on_progress: OnProgress) -> AsyncIterator[Round]:
        self._answers = ["alpha beta"] if request.mode == "plain" else ["alpha gamma"]
        return super().reply(request, on_progress)


async def test_the_comparison_does_not_hide_a_difference(tmp_path: Path) -> None:
    app = chat_app(tmp_path, Differing([""]))
    async with app.run_test() as pilot:
        await answered(app)
        await pilot.press("f5")
        await until(lambda: isinstance(app.screen, CompareScreen))
        await until(
            lambda: "differ from character 6" in str(app.screen.query_one("#verdict", Static).render())
        )


async def test_a_question_with_markup_can_be_compared(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession([WORDS]))
    async with app.run_test() as pilot:
        await answered(app, "What does [/b] mean in [red]?")
        await pilot.press("f5")
        await until(lambda: isinstance(app.screen, CompareScreen))
        await until(lambda: "identical" in str(app.screen.query_one("#verdict", Static).render()))
        assert "A/B: What does [/b] mean in [red]?" in app.export_screenshot().replace("&#160;", " ")


async def test_leaving_the_comparison_stops_it(tmp_path: Path) -> None:
    session = ScriptedSession([WORDS])
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        screen = await answered(app)
        session._hold = 2
        session.go_on.clear()
        await pilot.press("f5")
        await until(lambda: isinstance(app.screen, CompareScreen) and app.screen.replies[0].rounds)
        await pilot.press("escape")
        await until(lambda: app.screen is screen)
        session._hold = None
        await answered(app)
        assert len(screen.conversation.line) == 4
