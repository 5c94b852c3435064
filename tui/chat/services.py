"""What the app hands to its screens."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.progress import Progress
from specdec_onnx.tui.chat.engine_client import EngineClient
from specdec_onnx.tui.chat.history.store import Recorder, Store
from specdec_onnx.tui.chat.session import Opener
from specdec_onnx.tui.chat.settings import Preferences, database_path, preferences_path

Preparer = Callable[[str, Path, Progress], None]
"""(catalog name, folder, report): download and export; slow, runs in a thread."""


@dataclass(slots=True)
class Services:
    """History, engine and preferences; `notice` is a warning that stays on the screen."""

    engine: EngineClient
    store: Store
    recorder: Recorder
    preferences: Preferences
    prepare: Preparer
    extra_pairs: list[Path] = field(default_factory=list)
    notice: str = ""

    @classmethod
    def start(cls, opener: Opener, prepare: Preparer) -> "Services":
        """Open history and preferences; a history that can't be used is replaced by one in memory, with a notice."""
        notice = ""
        try:
            store = Store(database_path())
        except SpecdecError as error:
            store = Store(None)
            why = error.why.removesuffix(".")
            notice = f"{error.what} {why}. This session is not saved. {error.fix}"
        preferences = Preferences.load(preferences_path())
        return cls(EngineClient(opener), store, Recorder(store), preferences, prepare, notice=notice)

    def keep(self, conversation: str) -> bool:
        """Begin a new history with this conversation if the file was deleted; return whether it was.

        Raises SpecdecError if that fails; the conversation is in memory then.
        """
        if not self.store.lost():
            return False
        with self.recorder.aside(self.store):
            self.store.recreate(conversation)
        return True

    async def stop(self) -> None:
        """Save what is left and end the engine."""
        self.recorder.close()
        self.store.close()
        await self.engine.stop()


LANGUAGES = (
    *("text", "python", "c", "cpp", "javascript", "typescript", "java", "go", "rust"),
    *("bash", "sql", "html", "css", "json", "yaml", "toml"),
)
"""Those whose lexers are loaded ahead; any other is loaded with its first block."""


def preload() -> None:
    """Import the widgets of an answer, load tables and lexers; slow, for a thread."""
    import textual.highlight
    import textual.scrollbar  # noqa: F401
    from rich.cells import cell_len

    from specdec_onnx.tui.chat.widgets.markdown import highlighted

    cell_len("\N{BAR CHART}")  # the first character that is not ASCII loads the table of widths
    for language in LANGUAGES:
        highlighted("x = 1", language, "ansi_dark")
