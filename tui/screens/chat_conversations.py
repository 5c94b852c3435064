"""Which conversation is open: a new one, another one, another title."""

from functools import partial
from pathlib import Path

from specdec_onnx.tui.conversation import OpenConversation
from specdec_onnx.tui.screens.chat_turns import TurnActions


class Conversations(TurnActions):
    """Dialogs are awaited in a worker, so that an answer goes on behind them; imported late, so that the prompt comes first."""

    async def show(self, conversation: OpenConversation) -> None:
        """Make this the open conversation."""
        await self.end_answer()
        conversation.model = conversation.model or self.conversation.model
        self.conversation, self.editing = conversation, None
        await self.transcript.show_line(conversation.line)
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
        from specdec_onnx.tui.screens.history import HistoryScreen

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
        from specdec_onnx.tui.screens.ask import AskScreen

        return await self.app.push_screen_wait(AskScreen(question, value))
