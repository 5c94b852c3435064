"""The chat screen."""

from functools import partial
from typing import ClassVar

from textual import on
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.message import Message

from specdec_onnx.tui.commands_table import COMMANDS
from specdec_onnx.tui.preload import preload
from specdec_onnx.tui.screens.chat_places import Places
from specdec_onnx.tui.widgets.job import JobBar
from specdec_onnx.tui.widgets.prompt import Prompt
from specdec_onnx.tui.widgets.transcript import Transcript
from specdec_onnx.tui.widgets.welcome import Welcome


class ChatScreen(Places):
    """Puts the parts together and answers to keys and messages."""

    AUTO_FOCUS = "#prompt"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", show=False),
        Binding("ctrl+c", "interrupt", "Stop", show=False, priority=True),
        *(
            Binding(
                command.key,
                command.action,
                command.footer or command.label,
                show=bool(command.footer),
                priority=True,
            )
            for command in COMMANDS
            if command.key
        ),
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
    @on(JobBar.GivenUp)
    def job_ended(self) -> None:
        """Back to the prompt, but not away from a turn that is being read."""
        if self.transcript.focused_turn() is None:
            self.prompt.focus()

    def _arrange(self, turns: int) -> None:
        self.query_one(Welcome).display = turns == 0
        self.transcript.display = turns > 0
