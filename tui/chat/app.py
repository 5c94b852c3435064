"""The Textual app around the chat screen."""

from collections.abc import Iterable
from functools import partial
from pathlib import PurePath
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.driver import Driver
from textual.notifications import SeverityLevel
from textual.screen import Screen

from specdec_onnx.models.text import on_one_line, printable
from specdec_onnx.tui.chat import terminal
from specdec_onnx.tui.chat.keys import COMMANDS
from specdec_onnx.tui.chat.screens.chat import ChatScreen
from specdec_onnx.tui.chat.services import Services
from specdec_onnx.tui.chat.settings import Settings, preferences_path

FEW_COLOURS = (None, "standard")
WIDTHS, HEIGHTS = [(0, "-narrow"), (60, "-medium"), (100, "-wide")], [(0, "-low"), (14, "-high")]
"""Classes that a screen has from so many cells on, for the style sheets."""
DEFAULT_THEME, ANSI_THEME = "textual-dark", "ansi-dark"


class ChatApp(App[None]):
    """Themes, palette and quitting; everything else is on the screens."""

    TITLE = "specdec"
    HORIZONTAL_BREAKPOINTS, VERTICAL_BREAKPOINTS = WIDTHS, HEIGHTS
    CSS_PATH: ClassVar[list[str | PurePath]] = ["app.tcss", "screens/chat.tcss"]

    def __init__(self, services: Services, *, device: str = "cpu", open_latest: bool = False) -> None:
        super().__init__()
        self.services = services
        self._device = device
        self._open_latest = open_latest

    def get_default_screen(self) -> Screen[None]:
        """The chat is the only screen at first."""
        return ChatScreen(self.services, Settings(device=self._device))

    def get_driver_class(self) -> type[Driver]:
        """Textual's own, adapted."""
        return terminal.adapt(super().get_driver_class())

    def on_mount(self) -> None:
        """Restore the theme; with 16 colours, the default is the terminal's own."""
        terminal.on_end_signals(lambda number: self.call_later(self._leave, 128 + number))
        fitting = ANSI_THEME if self.console.color_system in FEW_COLOURS else DEFAULT_THEME
        chosen = self.services.preferences.theme
        self.theme = chosen if chosen in self.available_themes else fitting
        self.watch(self, "theme", self._remember_theme, init=False)
        if self._open_latest and (latest := self.services.store.latest()) is not None:
            screen = self.screen
            assert isinstance(screen, ChatScreen)
            self.call_after_refresh(screen.conversations.open, latest.id)

    def _remember_theme(self, theme: str) -> None:
        self.services.preferences.theme = theme

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Show a message; text that it quotes can't reach the terminal as a command."""
        super().notify(
            printable(message),
            title=on_one_line(title),
            severity=severity,
            timeout=timeout,
            markup=markup,
        )

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Every action of the chat, then Textual's own except those that ours replace."""
        if isinstance(screen, ChatScreen):
            for command in COMMANDS:
                yield SystemCommand(command.label, command.help, partial(screen.run_action, command.action))
        for own in super().get_system_commands(screen):
            if own.title not in ("Keys", "Maximize", "Minimize"):
                yield own

    async def action_quit(self) -> None:
        """Put away the answer under way before the screens close."""
        await self._leave(0)

    async def _leave(self, code: int) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, ChatScreen):
                await screen.answering.end()
        self.exit(return_code=code)

    async def on_unmount(self) -> None:
        """The screens are gone by now: keep the preferences and end the rest."""
        self.services.preferences.save(preferences_path())
        await self.services.stop()
