"""Ways out of the conversation: others, files, models, settings, comparison."""

from dataclasses import replace
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.conversation import OpenConversation, titled
from specdec_onnx.tui.history.transfer import from_json, to_json, to_markdown
from specdec_onnx.tui.pairs import folder_of
from specdec_onnx.tui.screens.ask import AskScreen
from specdec_onnx.tui.screens.chat_turns import TurnActions
from specdec_onnx.tui.screens.compare import CompareScreen
from specdec_onnx.tui.screens.history import HistoryScreen
from specdec_onnx.tui.screens.keys import KeysScreen
from specdec_onnx.tui.screens.models import ModelsScreen
from specdec_onnx.tui.screens.settings import SettingsScreen
from specdec_onnx.tui.widgets.answer import VIEWS
from specdec_onnx.tui.widgets.job import JobBar


class Places(TurnActions):
    """Each dialog is awaited in a worker, so that an answer goes on behind it."""

    async def show(self, conversation: OpenConversation) -> None:
        """Make this the open conversation."""
        await self.end_answer()
        conversation.model = conversation.model or self.conversation.model
        self.conversation, self.editing = conversation, None
        await self.transcript.show_line(conversation.line)
        if conversation.model and Path(conversation.model).exists():
            self.services.host.open(conversation.model, conversation.settings.device)
        self.refresh_bars()
        self.prompt.focus()

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
        chosen = await self.app.push_screen_wait(HistoryScreen(self.services.store))
        current = self.conversation.stored
        if chosen:
            await self.open_conversation(chosen)
        elif current is not None and self.services.store.conversation(current.id) is None:
            await self.action_new()
        else:
            self.conversation.reload()
            self.refresh_bars()

    def action_rename(self) -> None:
        """Give the conversation another title."""
        self.run_worker(self._rename(), group="dialog", exclusive=True)

    async def _rename(self) -> None:
        if self.conversation.stored is None:
            self.notify("Ask something first.", title="Nothing to rename")
            return
        title = await self.app.push_screen_wait(
            AskScreen("Title of this conversation", self.conversation.title)
        )
        self.conversation.rename(title or "")
        self.refresh_bars()

    def action_export(self, kind: str) -> None:
        """Write the conversation to a file."""
        self.run_worker(self._export(kind), group="dialog", exclusive=True)

    async def _export(self, kind: str) -> None:
        stored = self.conversation.stored
        if stored is None:
            self.notify("Ask something first.", title="Nothing to export")
            return
        ending = "md" if kind == "markdown" else "json"
        name = "".join(c if c.isalnum() or c in " -_" else "" for c in stored.title).strip() or "conversation"
        chosen = await self.app.push_screen_wait(AskScreen("Write to", f"{name}.{ending}"))
        if chosen:
            markdown = to_markdown(stored, self.conversation.line)
            self._write(Path(chosen).expanduser(), markdown if kind == "markdown" else self._json())

    def _json(self) -> str:
        assert self.conversation.stored is not None
        return to_json(self.services.store, self.conversation.stored)

    def _write(self, path: Path, text: str) -> None:
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            self.notify("Choose another name.", title=f"{path} exists already", severity="error")
        except OSError as error:
            self.notify(str(error), title=f"{path} can't be written", severity="error", markup=False)
        else:
            self.notify(str(path.resolve()), title="Exported", markup=False)

    def action_import(self) -> None:
        """Read an exported conversation."""
        self.run_worker(self._import(), group="dialog", exclusive=True)

    async def _import(self) -> None:
        chosen = await self.app.push_screen_wait(AskScreen("File to import (.json)", ""))
        if not chosen:
            return
        try:
            made = from_json(self.services.store, Path(chosen).expanduser().read_text(encoding="utf-8"))
        except (OSError, UnicodeError) as error:
            self.notify(str(error), title="This file can't be read", severity="error", markup=False)
        except SpecdecError as error:
            self.report(error)
        else:
            await self.open_conversation(made.id)

    async def action_delete_conversation(self) -> None:
        """Remove the conversation with all its branches."""
        if self.conversation.stored is not None and self.ready():
            self.services.store.delete(self.conversation.stored.id)
            await self.action_new()

    def action_models(self) -> None:
        """Choose a pair."""
        self.run_worker(self._models(), group="dialog", exclusive=True)

    async def _models(self) -> None:
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
        if not self.query_one(JobBar).get(name, folder_of(name)):
            self.notify("One pair at a time.", title="A pair is being prepared")

    def use_model(self, pair: str) -> None:
        """Open a pair for this conversation, and as the first choice of the next start."""
        self.conversation.configure(self.conversation.settings, pair)
        self.services.preferences.model = pair
        self.services.host.open(pair, self.conversation.settings.device)
        self.refresh_bars()

    def action_settings(self) -> None:
        """Set system prompt, sampling and device."""
        self.run_worker(self._settings(), group="dialog", exclusive=True)

    async def _settings(self) -> None:
        chosen = await self.app.push_screen_wait(SettingsScreen(self.conversation.settings))
        if chosen is not None:
            self.conversation.configure(chosen, self.conversation.model)
            if self.conversation.model:
                self.services.host.open(self.conversation.model, chosen.device)
            self.refresh_bars()

    def action_keys(self) -> None:
        """Every key."""
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
        self.conversation.configure(settings, self.conversation.model)
        self.refresh_bars()

    def action_compare(self) -> None:
        """Answer the last question plainly and speculatively."""
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
