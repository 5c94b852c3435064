"""What every part of the chat screen shares."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar, cast

from textual import on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.message import Message
from textual.notifications import Notification, Notify
from textual.screen import Screen
from textual.widgets import Static

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.places import folder_of
from specdec_onnx.tui.chat import clipboard
from specdec_onnx.tui.chat.clipboard import code_blocks
from specdec_onnx.tui.chat.conversation import OpenConversation, titled
from specdec_onnx.tui.chat.courtesy import short_collections
from specdec_onnx.tui.chat.history.store import Role, Turn
from specdec_onnx.tui.chat.history.transfer import from_json, to_json, to_markdown
from specdec_onnx.tui.chat.keys import SCREEN_BINDINGS
from specdec_onnx.tui.chat.reply import Reply, limits, tokens_used, why_nothing_drafted, why_plain
from specdec_onnx.tui.chat.screens.dialogs import SECONDS_TO_CONFIRM, SecondPress
from specdec_onnx.tui.chat.services import Services, preload
from specdec_onnx.tui.chat.session import Request
from specdec_onnx.tui.chat.settings import Settings
from specdec_onnx.tui.chat.widgets.answer import VIEWS
from specdec_onnx.tui.chat.widgets.bars import JobBar, KeyBar, StatisticsBar, TopBar
from specdec_onnx.tui.chat.widgets.prompt import Prompt
from specdec_onnx.tui.chat.widgets.transcript import Transcript
from specdec_onnx.tui.chat.widgets.welcome import Welcome
from specdec_onnx.tui.text import on_one_line


class ChatBase(Screen[None]):
    """Layout, the open conversation and the lines around it."""

    def __init__(self, services: Services, settings: Settings) -> None:
        super().__init__()
        self.services = services
        self.conversation = OpenConversation(services.store, settings)
        self.reply: Reply | None = None
        self.editing: Turn | None = None
        self.draft = ""
        self._second_press = SecondPress()

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
        if self._second_press.confirms(what):
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


FRAMES = 25
GIVING_UP = "Esc again does. What has come is kept for the next time."
FRAMES_PER_SAVE = 10


class Answering(ChatBase):
    """One answer at a time; the screen only ever reads what the engine's thread has left for it."""

    _frame = 0
    _busy: Notification | None = None
    _pair = ""
    _before = 0

    async def begin(self, answer: Turn, partial: str = "") -> None:
        """Have the engine write `answer`, from `partial` on."""
        settings = self.conversation.settings
        request = Request(self.conversation.messages(answer), settings, self.mode(), partial)
        earlier = answer.statistics.get("tokens_by_round", ()) if partial else ()
        self.reply = Reply(answer.id, request, pieces=list(answer.pieces), rounds=list(earlier))
        self._before = tokens_used(answer.statistics if partial else self._last_finished())
        self.services.host.answer(self.reply)
        self._pair = self.services.host.state.pair
        await self.transcript.update_branch(self.conversation.line)
        if partial and (view := self.transcript.answer(answer.id)) is not None:
            view.resume()
        # A worker, not a timer: the screen must be able to close while a frame is being drawn.
        self.run_worker(self._follow(self.reply), group="answer")
        self.refresh_bars()

    async def _follow(self, reply: Reply) -> None:
        page = self.transcript.page
        with short_collections:
            while not reply.finished:
                await asyncio.sleep(1 / FRAMES)
                if not page.is_attached:
                    return  # the screen is being taken down; on_unmount keeps what has come
                self.tick(reply)
            await self.finish(reply)

    def tick(self, reply: Reply) -> None:
        """Draw and save what has come since the last frame."""
        fresh = reply.drain()
        view = self.transcript.answer(reply.turn)
        if fresh and view is not None:
            view.write(fresh)
        if view is not None and reply.pieces:
            view.update_tokens(reply.pieces, reply.rounds)
        self._frame += 1
        if self._frame % FRAMES_PER_SAVE == 0 and reply.rounds:
            self.save(reply)
        self.refresh_bars()

    def save(self, reply: Reply) -> None:
        """Hand the answer so far to the history's own thread."""
        self.services.recorder.offer(reply.turn, reply.text, reply.reason, reply.pieces, self.figures(reply))

    def used(self, statistics: Mapping[str, object]) -> int:
        """While an answer comes, the prompt is what was there before and what had to be read."""
        reply = self.reply
        if reply is None or reply.final:
            return tokens_used(statistics)
        read = reply.reading[1] if reply.reading else 0
        return (read if read > self._before else self._before + read) + tokens_used(statistics)

    def figures(self, reply: Reply) -> dict[str, object]:
        """The statistics as they are stored."""
        failed = {"error": getattr(reply.error, "what", str(reply.error))} if reply.error else {}
        return {**reply.statistics(), "pair": self._pair, **failed}

    async def finish(self, reply: Reply) -> None:
        """Save and draw the finished answer, then make room for the next question."""
        self.save(reply)
        await asyncio.to_thread(self.services.recorder.wait)
        self.kept(self.conversation.reload)
        remark = why_nothing_drafted(reply.statistics(), self.modes())
        if (view := self.transcript.answer(reply.turn)) is not None:
            await view.finish(reply.reason or "cancelled", self.figures(reply), remark)
        self.reply = None
        self._hush()
        self._complain(reply)
        self.refresh_bars()

    def say_busy(self) -> None:
        """Say, until the answer ends, that it has to end first."""
        self._hush()
        self._busy = Notification(
            "Esc stops it.", "An answer is under way", timeout=self.app.NOTIFICATION_TIMEOUT
        )
        self.app.post_message(Notify(self._busy))

    def _hush(self) -> None:
        if self._busy is not None:
            self.app.call_later(self.app._unnotify, self._busy)  # behind its own Notify
            self._busy = None

    async def end_answer(self) -> None:
        """Stop the answer under way, if there is one, and put it away with what has come."""
        if self.reply is not None:
            self.reply.cancel()
            self.reply.reason = self.reply.reason or "cancelled"
        while self.reply is not None:
            await asyncio.sleep(1 / FRAMES)

    def on_unmount(self) -> None:
        """Leaving mid-answer keeps what has come."""
        if (reply := self.reply) is not None:
            reply.cancel()
            reply.drain()
            reply.reason = reply.reason or "cancelled"
            self.save(reply)

    def _complain(self, reply: Reply) -> None:
        if (failure := self.services.recorder.failure()) is not None:
            self.notify(str(failure), title="The answer could not be saved", severity="error", markup=False)
        if reply.error is not None and reply.error is not self.services.host.state.error:
            self.report(reply.error)

    def report(self, error: BaseException) -> None:
        """Show an error as what happened, why, and what to do."""
        if isinstance(error, SpecdecError):
            text = "\n".join(part for part in (error.why, error.fix) if part)
            self.notify(text, title=error.what, severity="error", timeout=12, markup=False)
        else:
            self.notify(str(error), title=type(error).__name__, severity="error", timeout=12, markup=False)

    def kept(self, change: Callable[[], object]) -> bool:
        """Store something; when that fails, say so and go on without."""
        try:
            change()
        except SpecdecError as error:
            self.report(error)
            return False
        return True

    async def action_stop(self) -> None:
        """Stop the answer and keep what came; else leave editing; else go back to the prompt; from there, pressed
        twice, give up a download."""
        job, at_prompt = self.query_one(JobBar), self.focused in (self.prompt, self.query_one("#job-cancel"))
        if self.reply is not None:
            self.reply.cancel()
        elif self.editing is not None:
            self.editing = None
            self.prompt.fill(self.draft)
        elif job.running and at_prompt and self.confirmed(job, "Give this download up?", GIVING_UP):
            job.cancel()
        self.prompt.focus()
        self.refresh_prompt()


Changed = TypeVar("Changed")

UNFINISHED = (None, "cancelled", "length", "error")


class TurnActions(Answering):
    """Each action takes the focused turn, or else the last one it fits."""

    _copied: tuple[int, int] = (0, 0)

    def chosen(self, role: Role | None = None) -> Turn | None:
        """The focused turn (or its question or answer), else the last turn of that role."""
        line = self.conversation.line
        focused = self.transcript.focused_turn()
        if focused is not None:
            place = next((at for at, turn in enumerate(line) if turn.id == focused.turn.id), None)
            if place is not None and role in (None, line[place].role):
                return line[place]
            neighbour = None if place is None else place + (1 if role == "assistant" else -1)
            if neighbour is not None and 0 <= neighbour < len(line):
                return line[neighbour]
        return next((turn for turn in reversed(line) if role in (None, turn.role)), None)

    def ready(self) -> bool:
        """Whether the branch may change; while an answer is under way it may not."""
        if self.busy:
            self.say_busy()
        return not self.busy

    async def action_regenerate(self) -> None:
        """Answer the question again, on a branch beside this answer."""
        answer = self.chosen("assistant")
        if answer is None or not self.ready():
            return
        again = await self.changed(partial(self.conversation.again, answer))
        if again is not None:
            await self.begin(again)
            self.prompt.focus()

    def action_edit(self) -> None:
        """Take a question into the prompt to change it."""
        question = self.chosen("user")
        if question is not None and self.ready():
            self.draft, self.editing = self.prompt.text, question
            self.prompt.fill(question.text)
            self.prompt.focus()
            self.refresh_prompt()

    async def action_resume(self) -> None:
        """Go on with the last answer, if it was cut short."""
        answer = self.conversation.head
        if answer is None or answer.role != "assistant" or not self.ready():
            return
        if answer.reason not in UNFINISHED:
            self.notify("Ctrl+R answers again.", title="This answer is complete")
            return
        await self.begin(answer, partial=answer.text)
        self.prompt.focus()

    async def changed(self, change: Callable[[], Changed]) -> Changed | None:
        """What a change of the conversation gives; None when it can't be made, as another chat has deleted what it
        needs or the disk is full: then what is left is shown, and an error."""
        try:
            return change()
        except SpecdecError as error:
            self.report(error)
        if self.kept(self.conversation.reload):
            await self.transcript.update_branch(self.conversation.line)
            self.refresh_bars()
        return None

    async def action_delete(self) -> None:
        """Delete a turn and what followed it, when asked twice."""
        turn = self.chosen()
        if turn is None or not self.ready():
            return
        if not self.confirmed(turn.id, "Delete this turn and all after it?", "The same again deletes it."):
            return
        await self.changed(partial(self.conversation.remove, turn))
        await self.transcript.update_branch(self.conversation.line)
        self.refresh_bars()
        self.prompt.focus()

    async def action_branch(self, offset: int) -> None:
        """Show another version of the focused turn, else of the last turn that has several."""
        turn = self._branching()
        if turn is None or not self.ready():
            return
        if await self.changed(partial(self.conversation.switch, turn, offset)):
            await self.transcript.update_branch(self.conversation.line)
            self.refresh_bars()

    def _branching(self) -> Turn | None:
        if self.transcript.focused_turn() is not None:
            return self.chosen()
        line = reversed(self.conversation.line)
        return next((turn for turn in line if self.conversation.place(turn)[1] > 1), None)

    def action_copy(self) -> None:
        """Copy the focused turn, else the last answer."""
        turn = self.chosen() if self.transcript.focused_turn() else self.chosen("assistant")
        text = (
            self.reply.text
            if turn and self.reply and self.reply.turn == turn.id
            else turn.text
            if turn
            else ""
        )
        if text:
            self.copy(text, f"{len(text.split()):,} words")

    def action_copy_code(self) -> None:
        """Copy the last code block; pressed again, the one before it."""
        answer = self.chosen("assistant")
        blocks = code_blocks(answer.text) if answer is not None else []
        if answer is None or not blocks:
            self.notify("This answer has no code block.")
            return
        number, back = self._copied
        back = (back + 1) % len(blocks) if number == answer.id else 0
        self._copied = (answer.id, back)
        block = blocks[len(blocks) - 1 - back]
        self.copy(block, f"code block {len(blocks) - back} of {len(blocks)}")

    def copy(self, text: str, what: str) -> None:
        """Both ways: OSC 52 reaches the terminal also over SSH, the tool reaches a local desktop."""
        self.app.copy_to_clipboard(text)
        self.run_worker(lambda: clipboard.copy(text), thread=True, group="clipboard")
        self.notify(f"Copied {what}.", timeout=2)

    def action_select_turn(self) -> None:
        """Move the focus to the last turn."""
        if turns := self.transcript.turns():
            turns[-1].focus()


class Conversations(TurnActions):
    """Dialogs are awaited in a worker, so that an answer goes on behind them; imported late, so that the prompt comes first."""

    async def show(self, conversation: OpenConversation) -> None:
        """Make this the open conversation."""
        await self.end_answer()
        conversation.model = conversation.model or self.conversation.model
        self.conversation, self.editing = conversation, None
        await self.transcript.show_branch(conversation.line)
        self._open_its_model(conversation)
        self.refresh_bars()
        self.prompt.focus()

    def _open_its_model(self, conversation: OpenConversation) -> None:
        if conversation.model and Path(conversation.model).exists():
            self.services.host.open(conversation.model, conversation.settings.device)
        elif conversation.model:
            self.notify(
                f"{conversation.model} is not there any more.",
                title="The model of this conversation",
                markup=False,
            )

    async def action_new(self) -> None:
        """An empty page with the same settings."""
        settings = self.conversation.settings
        await self.show(OpenConversation(self.services.store, settings, self.conversation.model))

    async def open_conversation(self, name: str) -> None:
        """Open a stored conversation."""
        if (found := OpenConversation.load(self.services.store, name)) is not None:
            await self.show(found)

    def action_history(self) -> None:
        """Find a conversation."""
        self.run_worker(self._history(), group="dialog", exclusive=True)

    async def _history(self) -> None:
        from specdec_onnx.tui.chat.screens.history import HistoryScreen

        chosen = await self.app.push_screen_wait(HistoryScreen(self.services.store))
        current = self.conversation.stored
        if chosen:
            await self.open_conversation(chosen)
        elif current is not None and self.services.store.conversation(current.id) is None:
            await self.action_new()
        elif self.kept(self.conversation.reload):
            self.refresh_bars()

    def action_rename(self) -> None:
        """Give the conversation another title."""
        self.run_worker(self._rename(), group="dialog", exclusive=True)

    async def _rename(self) -> None:
        if self.conversation.stored is None:
            self.notify("Ask something first.", title="Nothing to rename")
            return
        title = await self.ask("Title of this conversation", self.conversation.title)
        self.kept(partial(self.conversation.rename, title or ""))
        self.refresh_bars()

    async def action_delete_conversation(self) -> None:
        """Remove the conversation with all its branches, when asked twice."""
        stored = self.conversation.stored
        if stored is None or not self.ready():
            return
        sure = self.confirmed(stored.id, "Delete the whole conversation?", "The same again deletes it.")
        if sure and self.kept(partial(self.services.store.delete, stored.id)):
            await self.action_new()

    async def ask(self, question: str, value: str = "") -> str | None:
        """Let the reader type one line; None when the dialog was left."""
        from specdec_onnx.tui.chat.screens.dialogs import AskScreen

        return await self.app.push_screen_wait(AskScreen(question, value))


NAME = 80
"""Characters of a title that make the name of a file."""


class Files(Conversations):
    """Export never overwrites; import adds a conversation or says why not."""

    def action_export(self, kind: str) -> None:
        """Write the conversation to a file."""
        self.run_worker(self._export(kind), group="dialog", exclusive=True)

    async def _export(self, kind: str) -> None:
        stored = self.conversation.stored
        if stored is None:
            self.notify("Ask something first.", title="Nothing to export")
            return
        ending = "md" if kind == "markdown" else "json"
        name = (
            "".join(c if c.isalnum() or c in " -_" else "" for c in stored.title).strip()[:NAME]
            or "conversation"
        )
        chosen = await self.ask("Write to", f"{name}.{ending}")
        if chosen:
            markdown = to_markdown(stored, self.conversation.line)
            self._write(Path(chosen), markdown if kind == "markdown" else self._json())

    def _json(self) -> str:
        assert self.conversation.stored is not None
        return to_json(self.services.store, self.conversation.stored)

    def _write(self, path: Path, text: str) -> None:
        try:
            path = path.expanduser()
            _make(path, text)
        except FileExistsError:
            self.notify("Choose another name.", title=f"{path} exists already", severity="error")
        except (OSError, RuntimeError) as error:  # RuntimeError: `~nobody` has no home
            self.notify(str(error), title=f"{path} can't be written", severity="error", markup=False)
        else:
            self.notify(str(path.resolve()), title="Exported", markup=False)

    def action_import(self) -> None:
        """Read an exported conversation."""
        self.run_worker(self._import(), group="dialog", exclusive=True)

    async def _import(self) -> None:
        chosen = await self.ask("File to import (.json)", "")
        if not chosen:
            return
        try:
            made = from_json(self.services.store, _content(Path(chosen).expanduser()))
        except (OSError, RuntimeError, UnicodeError) as error:
            self.notify(str(error), title="This file can't be read", severity="error", markup=False)
        except SpecdecError as error:
            self.report(error)
        else:
            await self.open_conversation(made.id)


def _content(path: Path) -> str:
    if path.exists() and not path.is_file():  # a device or a pipe may never end
        raise OSError(f"{path} is not a file")
    return path.read_text(encoding="utf-8-sig")


def _make(path: Path, text: str) -> None:
    """A new file, whole or not at all."""
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink(missing_ok=True)
            raise


class Places(Files):
    """What an answer is made with, and how it is looked at."""

    def action_models(self) -> None:
        """Choose a pair."""
        self.run_worker(self._models(), group="dialog", exclusive=True)

    async def _models(self) -> None:
        from specdec_onnx.tui.chat.screens.models import ModelsScreen

        chosen = await self.app.push_screen_wait(ModelsScreen(self.services, self.conversation.model))
        if chosen is None:
            return
        kind, name = chosen
        if kind == "open":
            self.use_model(name)
        else:
            self.get_pair(name)

    def get_pair(self, name: str) -> None:
        """Download and export a catalog entry; the chat stays usable meanwhile."""
        if not self.query_one(JobBar).start(name, folder_of(name)):
            self.notify("One pair at a time.", title="A pair is being prepared")

    def use_model(self, pair: str) -> None:
        """Open a pair for this conversation, and as the first choice of the next start."""
        self.kept(partial(self.conversation.configure, self.conversation.settings, pair))
        self.services.preferences.model = pair
        self.services.host.open(pair, self.conversation.settings.device)
        self.refresh_bars()

    def action_settings(self) -> None:
        """Set system prompt, sampling and device."""
        self.run_worker(self._settings(), group="dialog", exclusive=True)

    async def _settings(self) -> None:
        from specdec_onnx.tui.chat.screens.settings import SettingsScreen

        chosen = await self.app.push_screen_wait(SettingsScreen(self.conversation.settings))
        if chosen is not None:
            self.kept(partial(self.conversation.configure, chosen, self.conversation.model))
            if self.conversation.model:
                self.services.host.open(self.conversation.model, chosen.device)
            self.refresh_bars()

    def action_keys(self) -> None:
        """Every key."""
        from specdec_onnx.tui.chat.screens.dialogs import KeysScreen

        self.app.push_screen(KeysScreen())

    def action_token_view(self) -> None:
        """Text, tokens, trace, and round again."""
        following = VIEWS[(VIEWS.index(self.transcript.view) + 1) % len(VIEWS)]
        self.transcript.set_view(following)
        names = {
            "text": "Text",
            "tokens": "Tokens by source",
            "trace": "Trace: with rejected tokens and rounds",
        }
        self.notify(names[following], timeout=2)

    def action_speculation(self) -> None:
        """Switch speculation for the answers to come."""
        settings = replace(self.conversation.settings, speculate=not self.conversation.settings.speculate)
        self.kept(partial(self.conversation.configure, settings, self.conversation.model))
        self.refresh_bars()

    def action_compare(self) -> None:
        """Answer the last question plainly and speculatively."""
        from specdec_onnx.tui.chat.screens.compare import CompareScreen

        question = self.chosen("user")
        if question is None or not self.ready():
            return
        if self.services.host.state.session is None:
            self.notify("Wait until it is loaded, or choose one with Ctrl+O.", title="No model is ready")
            return
        answers = [turn for turn in self.conversation.line if turn.parent == question.id]
        prompt = self.conversation.messages(answers[0]) if answers else None
        if prompt:
            screen = CompareScreen(
                self.services.host, prompt, self.conversation.settings, titled(question.text)
            )
            self.app.push_screen(screen)


class ChatScreen(Places):
    """Puts the parts together and answers to keys and messages."""

    AUTO_FOCUS = "#prompt"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", show=False),
        Binding("ctrl+c", "interrupt", "Stop", show=False, priority=True),
        *SCREEN_BINDINGS,
    ]

    class HostChanged(Message):
        """Posted from either thread: loading began, ended or failed."""

    def on_mount(self) -> None:
        """Show the page at once, then start loading behind it."""
        self.services.host.changed = self._tell_of_host
        self.keep_focus()
        self._arrange(0)
        self.refresh_bars()
        self.call_after_refresh(self.start)

    def _tell_of_host(self) -> None:
        self.post_message(self.HostChanged())

    def start(self) -> None:
        """Get ready for an answer; open the model that was asked for, used last, or the only one there is."""
        self.run_worker(preload, thread=True, group="preload")
        if self.conversation.stored is None and (chosen := self.query_one(Welcome).first_choice()):
            self.use_model(chosen)

    @on(HostChanged)
    def host_changed(self) -> None:
        """Loading began, ended or failed."""
        state = self.services.host.state
        if state.error is not None:
            self.report(state.error)
        self.query_one(Welcome).refresh_text()
        self.refresh_bars()

    async def action_interrupt(self) -> None:
        """Ctrl+C copies what is selected, else stops an answer, else hints at Ctrl+Q, as everywhere."""
        if selected := self.get_selected_text():
            self.copy(selected, f"{len(selected.split()):,} words")
        elif self.busy:
            await self.action_stop()
        else:
            raise SkipAction

    @on(Prompt.Submitted)
    async def submitted(self, event: Prompt.Submitted) -> None:
        """Ask; while an answer is under way the text stays in the prompt."""
        if not self.services.host.state.pair:
            self.notify("Choose or get one with Ctrl+O.", title="No model is open", severity="warning")
            return
        if not self.ready():
            return
        question, self.editing = self.editing, None
        if question is None:
            answer = await self.changed(partial(self.conversation.ask, event.text))
        else:
            answer = await self.changed(partial(self.conversation.edit, question, event.text))
        if answer is None:
            return
        self.prompt.fill(self.draft if question is not None else "")
        await self.begin(answer)

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

    @on(Welcome.Chosen)
    def chosen_to_get(self, event: Welcome.Chosen) -> None:
        """A catalog entry was picked on the empty page; the question can be typed meanwhile."""
        self.get_pair(event.name)
        self.prompt.focus()

    @on(JobBar.Done)
    def got(self, event: JobBar.Done) -> None:
        """A pair was downloaded and exported: open it."""
        self.notify("It is opened now.", title=f"{event.folder.name} is ready", markup=False)
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

    def _arrange(self, turns: int) -> None:
        self.query_one(Welcome).display = turns == 0
        self.transcript.display = turns > 0
