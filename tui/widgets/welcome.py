"""The empty page: what this is, and on a machine without a model the offer to get one."""

from dataclasses import dataclass
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from specdec_onnx.tui.catalog_lines import offered
from specdec_onnx.tui.inventory import describe, local_pairs
from specdec_onnx.tui.safe import printable
from specdec_onnx.tui.services import Services

READY = (
    "Every word comes from the large model. The small one and the text so far only guess ahead, so it comes sooner.\n"
    "F3 shows who guessed what · F5 compares both speeds · F1 all keys"
)
NO_MODEL = (
    "No model is on this machine yet. Choose one to download and prepare; after that everything works offline.\n"
    "Tab goes to the list, Enter starts. You can also open a folder of your own: specdec chat FOLDER"
)
MEASURING = "Opened here for the first time: how fast it is on this machine is measured now, only this once."


class Welcome(Vertical):
    """Shown while the conversation is empty."""

    @dataclass
    class Chosen(Message):
        """A catalog entry was picked."""

        name: str

    def __init__(self, services: Services, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.services = services

    def compose(self) -> ComposeResult:
        """A heading, a text, and a list that is there only when it is needed."""
        yield Static("specdec", id="welcome-name")
        yield Static("faster, and never a different token", id="welcome-motto")
        yield Static("", id="welcome-text", markup=False)
        yield OptionList(id="welcome-list")

    def on_mount(self) -> None:
        """Say what fits this machine."""
        self.refresh_text()

    def refresh_text(self) -> None:
        """After a pair was opened or got, say something else."""
        state = self.services.host.state
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
            entries.add_options([Option(line, id=name) for name, line in offered().items()])
            entries.highlighted = 0

    def first_choice(self) -> str | None:
        """The pair to open at the start: the one asked for, the last one used, or the first that works."""
        if self.services.extra_pairs:
            return str(self.services.extra_pairs[0])
        last = self.services.preferences.model
        if last and not describe(Path(last)).problem:
            return last
        return next((str(pair.path) for pair in local_pairs() if not pair.problem), None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Pass the choice on."""
        event.stop()
        if event.option_id:
            self.post_message(self.Chosen(event.option_id))
