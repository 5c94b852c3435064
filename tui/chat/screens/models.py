"""The dialog to open a pair on this machine or to download one."""

from pathlib import Path
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from specdec_onnx.tui.chat.inventory import (
    LocalPair,
    downloadable_options,
    local_option,
    local_pairs,
    same_folder,
)
from specdec_onnx.tui.chat.services import Services

Choice = tuple[Literal["open", "get"], str]
"""("open", folder) or ("get", name in the catalog)."""


class ModelsScreen(ModalScreen[Choice | None]):
    """Returns the choice, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,ctrl+o", "leave", "Close")]

    def __init__(self, services: Services, current: str) -> None:
        super().__init__()
        self._services, self._current = services, current
        self._pairs: list[LocalPair] = []

    def compose(self) -> ComposeResult:
        """Show one list with two headings."""
        with Vertical(classes="dialog tall") as box:
            box.border_title = "Models"
            box.border_subtitle = "Enter opens or downloads · Esc closes"
            yield OptionList(id="models")

    def on_mount(self) -> None:
        """Fill the list; that reads only a few small files."""
        extra = [*self._services.extra_pairs, *([Path(self._current)] if self._current else [])]
        self._pairs = local_pairs(extra)
        speeds = self._services.store.measured_speeds()
        entries = self.query_one(OptionList)
        if self._pairs:
            entries.add_options(
                [_heading("On this machine"), *(self._option(pair, speeds) for pair in self._pairs)]
            )
        if options := downloadable_options():
            entries.add_options(
                [_heading("To download"), *(Option(text, id=f"get:{name}") for name, text in options.items())]
            )
        entries.highlighted = self._current_option()

    def _option(self, pair: LocalPair, speeds: dict[str, float]) -> Option:
        is_open = same_folder(pair.path, self._current)
        speed = next((speed for name, speed in speeds.items() if same_folder(name, pair.path)), None)
        return Option(
            local_option(pair, speed, is_open=is_open), id=f"open:{pair.path}", disabled=bool(pair.problem)
        )

    def _current_option(self) -> int:
        pairs = enumerate(self._pairs, start=1)
        return next((at for at, pair in pairs if same_folder(pair.path, self._current)), 1)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the choice."""
        kind, _, name = (event.option_id or "").partition(":")
        self.dismiss(("open", name) if kind == "open" else ("get", name))

    def action_leave(self) -> None:
        """Keep the open pair."""
        self.dismiss(None)


def _heading(text: str) -> Option:
    """Return a line that can't be chosen."""
    return Option(Content.assemble((text, "bold $text-primary")), disabled=True)
