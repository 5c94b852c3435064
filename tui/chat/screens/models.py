"""The model picker: pairs on this machine, and those to get."""

from pathlib import Path
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from specdec_onnx.tui.chat.inventory import LocalPair, local, local_pairs, measured_speeds, offered, same_path
from specdec_onnx.tui.chat.services import Services

Choice = tuple[Literal["open", "get"], str]


class ModelsScreen(ModalScreen[Choice | None]):
    """Gives ("open", folder), ("get", catalog name), or None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,ctrl+o", "leave", "Close")]

    def __init__(self, services: Services, current: str) -> None:
        super().__init__()
        self._services, self._current = services, current
        self._pairs: list[LocalPair] = []

    def compose(self) -> ComposeResult:
        """One list with two headings."""
        with Vertical(classes="dialog tall") as box:
            box.border_title = "Models"
            box.border_subtitle = "Enter opens or gets · Esc closes"
            yield OptionList(id="models")

    def on_mount(self) -> None:
        """Fill the list; reading a few small files takes milliseconds."""
        extra = [*self._services.extra_pairs, *([Path(self._current)] if self._current else [])]
        self._pairs = local_pairs(extra)
        speeds = measured_speeds(self._services.store)
        entries = self.query_one(OptionList)
        if self._pairs:
            entries.add_options(
                [heading("On this machine"), *(self._option(pair, speeds) for pair in self._pairs)]
            )
        if lines := offered():
            entries.add_options(
                [heading("To get"), *(Option(line, id=f"get:{name}") for name, line in lines.items())]
            )
        entries.highlighted = self._first()

    def _option(self, pair: LocalPair, speeds: dict[str, float]) -> Option:
        current = same_path(pair.path, self._current)
        speed = next((speed for name, speed in speeds.items() if same_path(name, pair.path)), None)
        return Option(local(pair, speed, current), id=f"open:{pair.path}", disabled=bool(pair.problem))

    def _first(self) -> int:
        places = [at for at, pair in enumerate(self._pairs) if same_path(pair.path, self._current)]
        return places[0] + 1 if places else 1

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Done."""
        kind, _, name = (event.option_id or "").partition(":")
        self.dismiss(("open", name) if kind == "open" else ("get", name))

    def action_leave(self) -> None:
        """Keep what is open."""
        self.dismiss(None)


def heading(text: str) -> Option:
    """A line that can't be chosen."""
    return Option(Content.assemble((text, "bold $text-primary")), disabled=True)
