"""Conversations to and from files."""

from pathlib import Path

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.history.transfer import from_json, to_json, to_markdown
from specdec_onnx.tui.screens.chat_conversations import Conversations

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
