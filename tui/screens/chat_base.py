"""What every part of the chat screen shares."""

from collections.abc import Mapping
from typing import cast

from textual.app import ComposeResult
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Static

from specdec_onnx.tui.conversation import OpenConversation
from specdec_onnx.tui.figures import tokens_used
from specdec_onnx.tui.history.records import Turn
from specdec_onnx.tui.reply import Reply
from specdec_onnx.tui.safe import on_one_line
from specdec_onnx.tui.screens.ask import SECONDS_TO_CONFIRM, Twice
from specdec_onnx.tui.services import Services
from specdec_onnx.tui.settings import Settings
from specdec_onnx.tui.why import limits, why_plain
from specdec_onnx.tui.widgets.bars import KeyBar, StatisticsBar, TopBar
from specdec_onnx.tui.widgets.job import JobBar
from specdec_onnx.tui.widgets.prompt import Prompt
from specdec_onnx.tui.widgets.transcript import Transcript
from specdec_onnx.tui.widgets.welcome import Welcome


class ChatBase(Screen[None]):
    """Layout, the open conversation and the lines around it."""

    def __init__(self, services: Services, settings: Settings) -> None:
        super().__init__()
        self.services = services
        self.conversation = OpenConversation(services.store, settings)
        self.reply: Reply | None = None
        self.editing: Turn | None = None
        self.draft = ""
        self._twice = Twice()

    def compose(self) -> ComposeResult:
        """One line, the conversation, the prompt, two or three lines."""
        yield TopBar(id="top")
        notice = Static(on_one_line(self.services.notice), id="notice", markup=False)
        notice.display = bool(self.services.notice)
        yield notice
        yield Welcome(self.services, id="welcome")
        yield Transcript(self.conversation_place, id="transcript")
        yield Prompt(self.recall, id="prompt")
        yield JobBar(
            self.services.prepare, id="job"
        )  # behind the prompt, so that Tab goes from there to Cancel
        yield StatisticsBar(id="statistics")
        yield KeyBar(compact=True)

    def keep_focus(self) -> None:
        """Watch what has the keyboard; Textual leaves it with nothing when that is hidden or removed."""
        self.watch(self, "focused", self._settle_focus, init=False)
        self.watch(self.app, "app_focus", self._settle_focus, init=False)

    def _settle_focus(self) -> None:
        # What had the focus when the terminal lost it gets it back, even if it was hidden in between.
        if self.app.app_focus and self.query("#prompt") and self.focused not in self.focus_chain:
            self.prompt.focus()

    @property
    def transcript(self) -> Transcript:
        """The scrolling turns."""
        return self.query_one("#transcript", Transcript)

    @property
    def prompt(self) -> Prompt:
        """The input."""
        return self.query_one("#prompt", Prompt)

    @property
    def busy(self) -> bool:
        """Whether an answer is under way."""
        return self.reply is not None

    def conversation_place(self, turn: Turn) -> tuple[int, int]:
        """Which version of a turn is shown, and of how many."""
        return self.conversation.place(turn)

    def recall(self) -> list[str]:
        """Questions that Up walks through: those of this conversation, else the latest of any."""
        if self.conversation.line:
            return [turn.text for turn in self.conversation.line if turn.role == "user"]
        rows = self.services.store.rows("SELECT text FROM turn WHERE role = 'user' ORDER BY id DESC LIMIT 50")
        return [cast(str, row[0]) for row in reversed(rows)]

    def confirmed(self, what: object, question: str, how: str) -> bool:
        """Ask with the first press, agree with the second."""
        if self._twice.again(what):
            self.app.clear_notifications()
            return True
        self.notify(how, title=question, timeout=SECONDS_TO_CONFIRM)
        return False

    def mode(self) -> str:
        """How the next answer is decoded."""
        return "auto" if self.conversation.settings.speculate else "plain"

    def modes(self) -> tuple[str, ...]:
        """What the loaded pair offers; nothing before it is loaded."""
        session = self.services.host.state.session
        return session.modes if session else ()

    def refresh_bars(self) -> None:
        """Bring the lines above and below up to date; a screen that is being closed has none."""
        try:
            top = self.query_one("#top", TopBar)
        except NoMatches:
            return
        state = self.services.host.state
        top.heading = self.conversation.title
        top.limit = state.session.context if state.session else 0
        about = f" · {state.session.about}" if state.session else ""
        top.model = f"{state.label}{about}" if state.pair else "no model (Ctrl+O)"
        bar = self.query_one("#statistics", StatisticsBar)
        shown = self.last_statistics()
        bar.statistics = shown
        top.used = self.used(shown)
        modes = self.modes() or ("auto",)
        bar.remark = why_plain(self.conversation.settings.speculate, modes) or self._limits()
        self.refresh_prompt()

    def _limits(self) -> str:
        return limits(self.modes()) if not self.last_statistics() else ""

    def used(self, statistics: Mapping[str, object]) -> int:
        """Tokens of the context."""
        return tokens_used(statistics)

    def last_statistics(self) -> dict[str, object]:
        """Figures of the answer under way, else of the last one on this branch."""
        if self.reply is not None:
            return self.reply.statistics()
        return self._last_finished()

    def _last_finished(self) -> dict[str, object]:
        answers = [turn for turn in self.conversation.line if turn.role == "assistant" and turn.statistics]
        return dict(answers[-1].statistics) if answers else {}

    def refresh_prompt(self) -> None:
        """Say around the prompt what is going on and what Enter would do."""
        self.prompt.frame(self._doing(), self._enter())

    def _enter(self) -> str:
        if self.editing is not None:
            return "Enter asks the changed question · Esc leaves it"
        if self.reply is not None:
            return "stopping" if self.reply.stopping else "Esc stops"
        return "Enter sends · Ctrl+J new line"

    def _doing(self) -> str:
        state = self.services.host.state
        if self.editing is not None:
            return "editing a question"
        if state.error is not None:
            return f"{state.label} can't be opened"
        if state.loading and self.reply is not None and self.reply.first:
            return f"answering; {state.label} is opened then"
        if state.loading:
            waiting = "the answer starts then" if self.busy else "you can already type"
            doing = f"measuring {state.label} on this machine, only this once" if state.measuring else ""
            return f"{doing or f'loading {state.label}'}; {waiting}"
        if self.reply is None or self.reply.first:
            return "answering" if self.reply else ""
        if self.reply.reading is None:
            return "waiting for the engine"
        done, total = self.reply.reading
        return f"reading the conversation: {done:,} of {total:,} tokens"
