"""The chat screen: its layout, its keys, and the lines around the conversation. Its parts do the rest."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, cast

from textual import on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Static

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import folder_of
from specdec_onnx.models.text import on_one_line
from specdec_onnx.tui.chat.conversation import OpenConversation, title_of
from specdec_onnx.tui.chat.keys import SCREEN_BINDINGS
from specdec_onnx.tui.chat.reply import limits, why_plain
from specdec_onnx.tui.chat.screens.answering import Answering
from specdec_onnx.tui.chat.screens.conversations import Conversations
from specdec_onnx.tui.chat.screens.dialogs import SECONDS_TO_CONFIRM, SecondPress
from specdec_onnx.tui.chat.screens.turns import Turns
from specdec_onnx.tui.chat.services import Services, preload
from specdec_onnx.tui.chat.settings import Settings
from specdec_onnx.tui.chat.widgets.bars import JobBar, KeyBar, StatisticsBar, TopBar
from specdec_onnx.tui.chat.widgets.prompt import Prompt
from specdec_onnx.tui.chat.widgets.transcript import Transcript
from specdec_onnx.tui.chat.widgets.welcome import Welcome

VIEW_NAMES = {
    "text": "Text",
    "tokens": "Tokens by source",
    "trace": "Trace: with rejected tokens and rounds",
}
GIVE_UP = "Press Esc again to cancel it. The part already downloaded is kept."


class ChatScreen(Screen[None]):
    """One open conversation and its parts; a part's `action_…` methods are the screen's."""

    AUTO_FOCUS = "#prompt"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", show=False),
        Binding("ctrl+c", "interrupt", "Stop", show=False, priority=True),
        *SCREEN_BINDINGS,
    ]

    class EngineChanged(Message):
        """Loading began, ended or failed."""

    def __init__(self, services: Services, settings: Settings) -> None:
        super().__init__()
        self.services = services
        self.conversation = OpenConversation(services.store, settings)
        self.answering = Answering(self)
        self.turns = Turns(self, self.answering)
        self.conversations = Conversations(self, self.answering)
        self._second_press = SecondPress()
        for part in (self.turns, self.conversations):
            for name in filter(lambda name: name.startswith("action_"), dir(part)):
                setattr(self, name, getattr(part, name))

    def compose(self) -> ComposeResult:
        """One line, the conversation, the prompt, two or three lines."""
        yield TopBar(id="top")
        notice = Static(on_one_line(self.services.notice), id="notice", markup=False)
        notice.display = bool(self.services.notice)
        yield notice
        yield Welcome(self.services, id="welcome")
        yield Transcript(lambda turn: self.conversation.version(turn), id="transcript")
        yield Prompt(self._recall, id="prompt")
        yield JobBar(
            self.services.prepare, id="job"
        )  # after the prompt, so that Tab goes from there to Cancel
        yield StatisticsBar(id="statistics")
        yield KeyBar(compact=True)

    @property
    def transcript(self) -> Transcript:
        """The scrolling turns."""
        return self.query_one("#transcript", Transcript)

    @property
    def prompt(self) -> Prompt:
        """The input."""
        return self.query_one("#prompt", Prompt)

    def _recall(self) -> list[str]:
        """Questions that Up walks through: those of this conversation, else the latest of any."""
        if self.conversation.line:
            return [turn.text for turn in self.conversation.line if turn.role == "user"]
        rows = self.services.store.rows("SELECT text FROM turn WHERE role = 'user' ORDER BY id DESC LIMIT 50")
        return [cast(str, row[0]) for row in reversed(rows)]

    def on_mount(self) -> None:
        """Show the page at once, then start loading."""
        self.services.engine.changed = self._tell_of_engine
        # Textual leaves the keyboard with nothing when what has it is hidden or removed.
        self.watch(self, "focused", self._settle_focus, init=False)
        self.watch(self.app, "app_focus", self._settle_focus, init=False)
        self._arrange(0)
        self.refresh_bars()
        self.call_after_refresh(self._start)

    def on_unmount(self) -> None:
        """Leaving mid-answer keeps the text so far."""
        self.answering.leave()

    def _start(self) -> None:
        """Get ready for an answer; open the model that was asked for, used last, or the only one there is."""
        self.run_worker(preload, thread=True, group="preload")
        if self.conversation.stored is None and (pair := self.query_one(Welcome).first_choice()):
            self.use_model(pair)

    def _tell_of_engine(self) -> None:
        self.post_message(self.EngineChanged())

    def _settle_focus(self) -> None:
        # What had the focus when the terminal lost it gets it back, even if it was hidden in between.
        if self.app.app_focus and self.query("#prompt") and self.focused not in self.focus_chain:
            self.prompt.focus()

    def report(self, error: BaseException) -> None:
        """Show an error as what happened, why, and what to do."""
        title, text = type(error).__name__, str(error)
        if isinstance(error, SpecdecError):
            title, text = error.what, "\n".join(part for part in (error.why, error.fix) if part)
        self.notify(text, title=title, severity="error", timeout=12, markup=False)

    def keep_history(self) -> None:
        """If the history was deleted meanwhile, say so and begin a new one with this conversation."""
        stored = self.conversation.stored
        try:
            if self.services.keep(stored.id if stored else ""):
                rest = "A new one was started with this conversation." if stored else "A new one was started."
                self.notify(rest, title="The history was deleted", severity="warning", timeout=12)
        except SpecdecError as error:
            self.report(error)
            self.notify("This session is not saved.", title="The history was deleted", severity="error")

    def attempt(self, change: Callable[[], object]) -> bool:
        """Store something; when that fails, report it and continue without."""
        self.keep_history()
        try:
            change()
        except SpecdecError as error:
            self.report(error)
            return False
        return True

    def confirmed(self, what: object, question: str, how: str) -> bool:
        """Ask at the first press, agree at the second."""
        if self._second_press.confirms(what):
            self.app.clear_notifications()
            return True
        self.notify(how, title=question, timeout=SECONDS_TO_CONFIRM)
        return False

    def modes(self) -> tuple[str, ...]:
        """The loaded pair's ways to decode; none before it is loaded."""
        session = self.services.engine.state.session
        return session.modes if session else ()

    def refresh_bars(self) -> None:
        """Bring the lines above and below up to date; a screen that is being closed has none."""
        try:
            top = self.query_one("#top", TopBar)
        except NoMatches:
            return
        state, statistics = self.services.engine.state, self.answering.statistics()
        top.heading = self.conversation.title
        top.limit = state.session.context if state.session else 0
        about = f" · {state.session.about}" if state.session else ""
        top.model = f"{state.label}{about}" if state.pair else "no model (Ctrl+O)"
        top.used = self.answering.tokens_used()
        bar = self.query_one("#statistics", StatisticsBar)
        bar.statistics = statistics
        speculation_off = why_plain(self.conversation.settings.speculate, self.modes() or ("auto",))
        bar.remark = speculation_off or ("" if statistics else limits(self.modes()))
        self.refresh_prompt()

    def refresh_prompt(self) -> None:
        """Say around the prompt what is going on and what Enter would do."""
        self.prompt.frame(self._doing(), self._enter())

    def _enter(self) -> str:
        if self.turns.editing is not None:
            return "Enter sends the edited question · Esc cancels"
        if self.answering.reply is not None:
            return "stopping" if self.answering.reply.stopping else "Esc stops"
        return "Enter sends · Ctrl+J new line"

    def _doing(self) -> str:
        state, reply = self.services.engine.state, self.answering.reply
        if self.turns.editing is not None:
            return "editing a question"
        if state.error is not None:
            return f"{state.label} can't be opened"
        if state.loading and reply is not None and reply.first:
            return f"answering; {state.label} opens afterwards"
        if state.loading:
            waiting = "the answer starts afterwards" if reply is not None else "you can start typing"
            doing = f"measuring {state.label} on this machine (first time only)" if state.measuring else ""
            return f"{doing or f'loading {state.label}'}; {waiting}"
        if reply is None or reply.first:
            return "answering" if reply else ""
        if reply.reading is None:
            return "waiting for the engine"
        done, total = reply.reading
        return f"reading the conversation: {done:,} of {total:,} tokens"

    def action_stop(self) -> None:
        """Stop the answer and keep its text; else leave editing; else give up a download, when pressed twice in
        the prompt. Back to the prompt in any case."""
        job, at_prompt = self.query_one(JobBar), self.focused in (self.prompt, self.query_one("#job-cancel"))
        if self.answering.busy:
            self.answering.stop()
        elif self.turns.editing is not None:
            self.turns.leave_editing()
        elif job.running and at_prompt and self.confirmed(job, "Cancel this download?", GIVE_UP):
            job.cancel()
        self.prompt.focus()
        self.refresh_prompt()

    def action_interrupt(self) -> None:
        """Ctrl+C copies what is selected, else stops an answer, else hints at Ctrl+Q, as everywhere."""
        if selected := self.get_selected_text():
            self.turns.copy(selected, f"{len(selected.split()):,} words")
        elif self.answering.busy:
            self.action_stop()
        else:
            raise SkipAction

    def action_keys(self) -> None:
        """Show every key."""
        from specdec_onnx.tui.chat.screens.dialogs import KeysScreen

        self.app.push_screen(KeysScreen())

    def action_models(self) -> None:
        """Choose a pair."""
        self.run_worker(self._models(), group="dialog", exclusive=True)

    async def _models(self) -> None:
        from specdec_onnx.tui.chat.screens.models import ModelsScreen

        chosen = await self.app.push_screen_wait(ModelsScreen(self.services, self.conversation.model))
        if chosen is not None:
            kind, name = chosen
            (self.use_model if kind == "open" else self.get_pair)(name)

    def get_pair(self, name: str) -> None:
        """Download and export a catalog entry; the chat stays usable meanwhile."""
        if not self.query_one(JobBar).start(name, folder_of(name)):
            self.notify("Wait until it is ready, or cancel it.", title="A pair is already being prepared")

    def use_model(self, pair: str) -> None:
        """Open a pair for this conversation, and as the first choice of the next start."""
        self.attempt(partial(self.conversation.configure, self.conversation.settings, pair))
        self.services.preferences.model = pair
        self.services.engine.open(pair, self.conversation.settings.device)
        self.refresh_bars()

    def action_settings(self) -> None:
        """Set system prompt, sampling and device."""
        self.run_worker(self._settings(), group="dialog", exclusive=True)

    async def _settings(self) -> None:
        from specdec_onnx.tui.chat.screens.settings import SettingsScreen

        chosen = await self.app.push_screen_wait(SettingsScreen(self.conversation.settings))
        if chosen is not None:
            self._configure(chosen)
            if self.conversation.model:
                self.services.engine.open(self.conversation.model, chosen.device)

    def action_speculation(self) -> None:
        """Switch speculation for the answers to come."""
        settings = self.conversation.settings
        self._configure(replace(settings, speculate=not settings.speculate))

    def _configure(self, settings: Settings) -> None:
        self.attempt(partial(self.conversation.configure, settings, self.conversation.model))
        self.refresh_bars()

    def action_token_view(self) -> None:
        """Show text, tokens, trace, and text again."""
        from specdec_onnx.tui.chat.widgets.answer import VIEWS

        view = VIEWS[(VIEWS.index(self.transcript.view) + 1) % len(VIEWS)]
        self.transcript.set_view(view)
        self.notify(VIEW_NAMES[view], timeout=2)

    def action_compare(self) -> None:
        """Answer the last question plainly and speculatively."""
        from specdec_onnx.tui.chat.screens.compare import CompareScreen

        question = self.turns.chosen("user")
        if question is None or not self.answering.idle():
            return
        if self.services.engine.state.session is None:
            self.notify("Wait for it to load, or choose one with Ctrl+O.", title="No model is ready")
            return
        answer = next((turn for turn in self.conversation.line if turn.parent == question.id), None)
        request = self.conversation.request(answer) if answer is not None else None
        if request is not None and request.messages:
            self.app.push_screen(CompareScreen(self.services.engine, request, title_of(question.text)))

    @on(EngineChanged)
    def engine_changed(self) -> None:
        """Loading began, ended or failed."""
        state = self.services.engine.state
        if state.error is not None:
            self.report(state.error)
        self.query_one(Welcome).refresh_text()
        self.refresh_bars()

    @on(Prompt.Submitted)
    async def submitted(self, event: Prompt.Submitted) -> None:
        """Ask; while an answer is under way the text stays in the prompt."""
        if not self.services.engine.state.pair:
            self.notify("Choose or download one with Ctrl+O.", title="No model is open", severity="warning")
        elif self.answering.idle() and (answer := await self.turns.ask(event.text)) is not None:
            await self.answering.begin(answer)

    @on(Prompt.ScrollAsked)
    def scroll(self, event: Prompt.ScrollAsked) -> None:
        """Scroll the conversation from the prompt."""
        if event.pages < 0:
            self.transcript.release_anchor()
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)

    @on(Transcript.Resized)
    def resized(self, event: Transcript.Resized) -> None:
        """The welcome page gives way to the first turn."""
        self._arrange(event.count)

    def _arrange(self, turns: int) -> None:
        self.query_one(Welcome).display = turns == 0
        self.transcript.display = turns > 0

    @on(Welcome.Chosen)
    def chosen_to_get(self, event: Welcome.Chosen) -> None:
        """A catalog entry was picked on the empty page; the question can be typed meanwhile."""
        self.get_pair(event.name)
        self.prompt.focus()

    @on(JobBar.Done)
    def got(self, event: JobBar.Done) -> None:
        """A pair was downloaded and exported: open it."""
        self.notify("Opening it now.", title=f"{event.folder.name} is ready", markup=False)
        self.use_model(str(event.folder))

    @on(JobBar.Failed)
    def failed(self, event: JobBar.Failed) -> None:
        """Say why there is no pair."""
        self.report(event.error)

    @on(JobBar.Done)
    @on(JobBar.Failed)
    @on(JobBar.Cancelled)
    def job_ended(self) -> None:
        """Back to the prompt, but not away from a turn that is being read."""
        if self.transcript.focused_turn() is None:
            self.prompt.focus()
