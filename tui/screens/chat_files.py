"""Conversations to and from files."""

from pathlib import Path

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.history.transfer import from_json, to_json, to_markdown
from specdec_onnx.tui.screens.chat_conversations import Conversations


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
        name = "".join(c if c.isalnum() or c in " -_" else "" for c in stored.title).strip() or "conversation"
        chosen = await self.ask("Write to", f"{name}.{ending}")
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
        chosen = await self.ask("File to import (.json)", "")
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
