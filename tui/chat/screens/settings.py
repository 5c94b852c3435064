"""The dialog for the settings of one conversation."""

from dataclasses import replace
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, Label, Select, Static, TextArea

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.settings import (
    DEFAULTS,
    DEVICES,
    FIELDS,
    OVERFLOWS,
    Settings,
    read_stops,
    show_stops,
)
from specdec_onnx.tui.chat.widgets.prompt import LineInput, TextInput


class SettingsScreen(ModalScreen[Settings | None]):
    """Returns the changed settings, or None if the dialog was cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f2", "leave", "Cancel"),
        Binding("ctrl+s", "save", "Save", priority=True),
    ]

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def compose(self) -> ComposeResult:
        """Lay out system prompt, device, numbers, stop strings and buttons."""
        with VerticalScroll(classes="dialog tall", can_focus=False) as box:
            box.border_title = "Settings of this conversation"
            box.border_subtitle = "Ctrl+S saves · Esc cancels"
            yield Label("System prompt")
            yield TextInput(self._settings.system, id="system", tab_behavior="focus", soft_wrap=True)
            yield Grid(*self._cells(), id="numbers")
            yield Horizontal(
                Button("Save", variant="primary", id="save", compact=True),
                Button("Defaults", id="defaults", compact=True),
                Button("Cancel", id="cancel", compact=True),
                Static("", id="problem", markup=False),
                classes="buttons",
            )

    def _cells(self) -> list[Widget]:
        devices = [(name, name) for name in DEVICES]
        overflows = [(about, name) for name, about in OVERFLOWS.items()]
        cells: list[Widget] = [
            Label("Device"),
            Select(devices, value=self._settings.device, allow_blank=False, compact=True, id="device"),
            Label("When the context is full"),
            Select(overflows, value=self._settings.overflow, allow_blank=False, compact=True, id="overflow"),
        ]
        for field in FIELDS:
            cells.append(Label(f"{field.label} ({field.hint})"))
            cells.append(LineInput(field.show(self._settings), id=field.name, compact=True))
        stops = LineInput(show_stops(self._settings.stop), id="stop", compact=True)
        return [*cells, Label("Stop strings (comma-separated, \\n)"), stops]

    def read(self) -> Settings:
        """Return the settings on the screen. Raises ValueError or SpecdecError for the first invalid one."""
        values: dict[str, Any] = {
            field.name: field.read(self.query_one(f"#{field.name}", Input).value) for field in FIELDS
        }
        values["stop"] = read_stops(self.query_one("#stop", Input).value)
        values["system"] = self.query_one("#system", TextArea).text.strip()
        values |= {name: self.query_one(f"#{name}", Select).value for name in ("device", "overflow")}
        return replace(self._settings, **values)

    @on(Input.Submitted)
    @on(Button.Pressed, "#save")
    def action_save(self) -> None:
        """Return the settings, or show what is invalid."""
        try:
            self.dismiss(self.read())
        except ValueError as error:
            self.query_one("#problem", Static).update(str(error))
        except SpecdecError as error:
            self.query_one("#problem", Static).update(f"{error.what}: {error.why}")

    @on(Button.Pressed, "#defaults")
    def defaults(self) -> None:
        """Fill in the default numbers."""
        for field in FIELDS:
            self.query_one(f"#{field.name}", Input).value = field.show(DEFAULTS)

    @on(Button.Pressed, "#cancel")
    def action_leave(self) -> None:
        """Change nothing."""
        self.dismiss(None)
