"""The history: a search field above a list."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.text import on_one_line, printable
from specdec_onnx.tui.chat.history.store import END, START, Store, Summary, find
from specdec_onnx.tui.chat.screens.keys import SECONDS_TO_CONFIRM, AskScreen, Twice
from specdec_onnx.tui.chat.widgets.prompt import LineInput

TITLE = 200
"""Characters of a title that the list shows."""


class HistoryScreen(ModalScreen[str | None]):
    """Gives the id of the conversation to open, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+f", "leave", "Close"),
        Binding("down", "move(1)", "Next", show=False, priority=True),
        Binding("up", "move(-1)", "Before", show=False, priority=True),
        Binding("ctrl+r", "rename", "Rename", priority=True),
        Binding("ctrl+d", "delete", "Delete", priority=True),
    ]

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._found: list[Summary] = []
        self._twice = Twice()

    def compose(self) -> ComposeResult:
        """Typing searches, arrows choose."""
        with Vertical(classes="dialog tall") as box:
            box.border_title = "History"
            box.border_subtitle = "Enter opens · Ctrl+R renames · Ctrl+D twice deletes · Esc closes"
            yield LineInput(placeholder="words in titles, questions and answers", id="words")
            yield OptionList(id="found")

    def on_mount(self) -> None:
        """The latest first."""
        self.search("")

    @on(Input.Changed)
    def typed(self, event: Input.Changed) -> None:
        """Search as one types."""
        self._twice.forget()
        self.search(event.value)

    def search(self, words: str, keep: int = 0) -> None:
        """Fill the list."""
        try:
            self._found = find(self._store, words)
        except SpecdecError as error:
            self._failed(error)
            return
        entries = self.query_one(OptionList)
        entries.clear_options()
        entries.add_options([Option(line(summary), id=summary.id) for summary in self._found])
        if self._found:
            entries.highlighted = min(keep, len(self._found) - 1)

    @on(Input.Submitted)
    def entered(self) -> None:
        """Enter in the search field opens the marked conversation."""
        if (summary := self.marked()) is not None:
            self.dismiss(summary.id)

    @on(OptionList.OptionSelected)
    def selected(self, event: OptionList.OptionSelected) -> None:
        """A click or Enter on the list."""
        self.dismiss(event.option_id)

    def marked(self) -> Summary | None:
        """The highlighted conversation."""
        place = self.query_one(OptionList).highlighted
        return self._found[place] if place is not None and place < len(self._found) else None

    def action_move(self, step: int) -> None:
        """Walk the list without leaving the search field."""
        entries = self.query_one(OptionList)
        self._twice.forget()
        if step > 0:
            entries.action_cursor_down()
        else:
            entries.action_cursor_up()

    def action_rename(self) -> None:
        """Ask for another title."""
        if (summary := self.marked()) is not None:
            ask = AskScreen("Title of this conversation", summary.title)
            self.app.push_screen(ask, lambda title: self._renamed(summary, title))

    def _renamed(self, summary: Summary, title: str | None) -> None:
        if title:
            self._change(partial(self._store.rename, summary.id, title))

    def action_delete(self) -> None:
        """The first press asks, the second deletes."""
        if (summary := self.marked()) is None:
            return
        if not self._twice.again(summary.id):
            self.notify(
                "Ctrl+D again deletes it for good.",
                title=summary.title,
                severity="warning",
                timeout=SECONDS_TO_CONFIRM,
            )
            return
        self.app.clear_notifications()
        self._change(partial(self._store.delete, summary.id))

    def _change(self, change: Callable[[], None]) -> None:
        try:
            change()
        except SpecdecError as error:
            self._failed(error)
        else:
            self._again()

    def _failed(self, error: SpecdecError) -> None:
        self.notify(error.why, title=error.what, severity="error", markup=False)

    def _again(self) -> None:
        words = self.query_one("#words", Input).value
        self.search(words, self.query_one(OptionList).highlighted or 0)

    def action_leave(self) -> None:
        """Open nothing."""
        self.dismiss(None)


def line(summary: Summary) -> Content:
    """Title, then age, length and the words that matched."""
    details = f"{clock(summary.updated)} · {summary.turns} turns"
    parts = [(on_one_line(summary.title[:TITLE]), "bold"), ("\n  ", ""), (details, "$text-muted")]
    return Content.assemble(*parts, *matched(summary.snippet))


def clock(seconds: float) -> str:
    """A moment as it stands on the reader's clock."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def matched(snippet: str) -> list[tuple[str, str]]:
    """The snippet with its matches marked."""
    if not snippet:
        return []
    parts: list[tuple[str, str]] = [(" · ", "$text-muted")]
    for number, piece in enumerate(" ".join(snippet.split()).replace(END, START).split(START)):
        parts.append((printable(piece), "bold underline" if number % 2 else "$text-muted"))
    return parts
