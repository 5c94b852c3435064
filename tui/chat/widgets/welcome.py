"""The empty page: what this is and, on a machine without a model, a list of those to download."""

from dataclasses import dataclass
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from specdec_onnx.models.text import printable
from specdec_onnx.tui.chat.inventory import describe, downloadable_options, local_pairs
from specdec_onnx.tui.chat.services import Services

READY = (
    "Every word comes from the large model. The small model and the text so far only guess ahead, which saves time.\n"
    "F3 shows who guessed what · F5 compares both speeds · F1 lists all keys"
)
NO_MODEL = (
    "There is no model on this machine yet. Choose one to download and prepare; after that, everything works offline.\n"
    "Tab moves to the list, Enter starts. Or open your own: specdec chat FOLDER"
)
MEASURING = "First time on this machine: measuring its speed. This happens only once."


class Welcome(Vertical):
    """Shown while the conversation is empty."""

    @dataclass
    class Chosen(Message):
        """A pair of the catalog was chosen."""

        name: str

    def __init__(self, services: Services, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.services = services

    def compose(self) -> ComposeResult:
        """Name, motto, text, and a list that is hidden while there is a model."""
        yield Static("specdec", id="welcome-name")
        yield Static("faster, and never a different token", id="welcome-motto")
        yield Static("", id="welcome-text", markup=False)
        yield OptionList(id="welcome-list")

    def on_mount(self) -> None:
        """Show what fits this machine."""
        self.refresh_text()

    def refresh_text(self) -> None:
        """Show what fits the state of the engine and the pairs on this machine."""
        state = self.services.engine.state
        empty = not state.pair and self.first_choice() is None
        text = NO_MODEL if empty else READY
        if state.measuring:
            text += f"\n{MEASURING}"
        if state.session is not None:
            text += (
                f"\nSelf-test on {state.session.device}, speculative against plain: {state.session.exactness}"
            )
        self.query_one("#welcome-text", Static).update(printable(text))
        entries = self.query_one(OptionList)
        entries.display = empty
        if empty and not entries.option_count:
            entries.add_options([Option(text, id=name) for name, text in downloadable_options().items()])
            entries.highlighted = 0

    def first_choice(self) -> str | None:
        """Return the pair to open at the start: the requested one, the last one used, or the first that works."""
        if self.services.extra_pairs:
            return str(self.services.extra_pairs[0])
        last = self.services.preferences.model
        if last and not describe(Path(last)).problem:
            return last
        return next((str(pair.path) for pair in local_pairs() if not pair.problem), None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Tell the screen which pair was chosen."""
        event.stop()
        if event.option_id:
            self.post_message(self.Chosen(event.option_id))
