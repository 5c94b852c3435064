"""Whole conversations: new, open, rename, delete, export and import.

Dialogs are awaited in a worker, so that an answer continues meanwhile; they are imported late, so that the prompt comes
first.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import delete_prefixes
from specdec_onnx.tui.chat.conversation import OpenConversation
from specdec_onnx.tui.chat.history.transfer import from_json, to_json, to_markdown

if TYPE_CHECKING:
    from specdec_onnx.tui.chat.screens.answering import Answering
    from specdec_onnx.tui.chat.screens.chat import ChatScreen

NAME_LENGTH = 80
"""Characters of a title that become a file's name."""


class Conversations:
    """Export never overwrites; import adds a conversation or says why not."""

    def __init__(self, screen: "ChatScreen", answering: "Answering") -> None:
        self._screen, self._answering = screen, answering
        self._store, self._engine = screen.services.store, screen.services.engine

    async def open(self, name: str) -> None:
        """Open a stored conversation."""
        if (stored := OpenConversation.load(self._store, name)) is not None:
            await self._show(stored)

    async def action_new(self) -> None:
        """Show an empty page with the same settings."""
        current = self._screen.conversation
        await self._show(OpenConversation(self._store, current.settings, current.model))

    def action_history(self) -> None:
        """Find a conversation."""
        self._screen.run_worker(self._history(), group="dialog", exclusive=True)

    def action_rename(self) -> None:
        """Change the conversation's title."""
        self._screen.run_worker(self._rename(), group="dialog", exclusive=True)

    async def action_delete_conversation(self) -> None:
        """Remove the conversation with all its branches, after a second press."""
        stored = self._screen.conversation.stored
        if stored is None or not self._answering.idle():
            return
        sure = self._screen.confirmed(stored.id, "Delete the whole conversation?", "Press again to delete.")
        if sure and self._screen.attempt(partial(self._store.delete, stored.id)):
            delete_prefixes()
            await self.action_new()

    def action_export(self, kind: str) -> None:
        """Write the conversation to a file."""
        self._screen.run_worker(self._export(kind), group="dialog", exclusive=True)

    def action_import(self) -> None:
        """Read an exported conversation."""
        self._screen.run_worker(self._import(), group="dialog", exclusive=True)

    async def _show(self, conversation: OpenConversation) -> None:
        screen = self._screen
        await self._answering.end()
        conversation.model = conversation.model or screen.conversation.model
        screen.conversation, screen.turns.editing = conversation, None
        await screen.transcript.show_branch(conversation.line)
        self._open_model(conversation)
        screen.refresh_bars()
        screen.prompt.focus()

    def _open_model(self, conversation: OpenConversation) -> None:
        if conversation.model and Path(conversation.model).exists():
            self._engine.open(conversation.model, conversation.settings.device)
        elif conversation.model:
            text, title = f"{conversation.model} no longer exists.", "This conversation's model is missing"
            self._screen.notify(text, title=title, markup=False)

    async def _history(self) -> None:
        from specdec_onnx.tui.chat.screens.history import HistoryScreen

        self._screen.keep_history()
        chosen = await self._screen.app.push_screen_wait(HistoryScreen(self._store))
        current = self._screen.conversation.stored
        if chosen:
            await self.open(chosen)
        elif current is not None and self._store.conversation(current.id) is None:
            await self.action_new()
        elif self._screen.attempt(self._screen.conversation.reload):
            self._screen.refresh_bars()

    async def _rename(self) -> None:
        conversation = self._screen.conversation
        if conversation.stored is None:
            self._screen.notify("Ask something first.", title="Nothing to rename")
            return
        title = await self._ask("Title of this conversation", conversation.title)
        self._screen.attempt(partial(conversation.rename, title or ""))
        self._screen.refresh_bars()

    async def _export(self, kind: str) -> None:
        conversation = self._screen.conversation
        if conversation.stored is None:
            self._screen.notify("Ask something first.", title="Nothing to export")
            return
        letters = "".join(c if c.isalnum() or c in " -_" else "" for c in conversation.title)
        name = letters.strip()[:NAME_LENGTH] or "conversation"
        chosen = await self._ask("Save as", f"{name}.{'md' if kind == 'markdown' else 'json'}")
        if chosen and kind == "markdown":
            self._write(Path(chosen), to_markdown(conversation.stored, conversation.line))
        elif chosen:
            self._write(Path(chosen), to_json(self._store, conversation.stored))

    def _write(self, path: Path, text: str) -> None:
        notify = partial(self._screen.notify, markup=False)
        try:
            path = path.expanduser()
            _write_new(path, text)
        except FileExistsError:
            notify("Choose another name.", title=f"{path} already exists", severity="error")
        except (OSError, RuntimeError) as error:  # RuntimeError: `~nobody` has no home
            notify(str(error), title=f"{path} can't be written", severity="error")
        else:
            notify(str(path.resolve()), title="Exported")

    async def _import(self) -> None:
        chosen = await self._ask("File to import (.json)", "")
        if not chosen:
            return
        try:
            imported = from_json(self._store, _read(Path(chosen).expanduser()))
        except (OSError, RuntimeError, UnicodeError) as error:
            title = "This file can't be read"
            self._screen.notify(str(error), title=title, severity="error", markup=False)
        except SpecdecError as error:
            self._screen.report(error)
        else:
            await self.open(imported.id)

    async def _ask(self, question: str, value: str) -> str | None:
        """Have the user type one line; None when the dialog was left."""
        from specdec_onnx.tui.chat.screens.dialogs import AskScreen

        return await self._screen.app.push_screen_wait(AskScreen(question, value))


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():  # a device or a pipe may never end
        raise OSError(f"{path} is not a file")
    return path.read_text(encoding="utf-8-sig")


def _write_new(path: Path, text: str) -> None:
    """Write a new file, whole or not at all."""
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink(missing_ok=True)
            raise
