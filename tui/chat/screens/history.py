"""The dialog to find, open, rename and delete conversations: a search field above a list."""

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
from specdec_onnx.models.system import delete_prefixes
from specdec_onnx.models.text import on_one_line, printable
from specdec_onnx.tui.chat.history.store import MATCH_END, MATCH_START, Store, Summary
from specdec_onnx.tui.chat.screens.dialogs import SECONDS_TO_CONFIRM, AskScreen, SecondPress
from specdec_onnx.tui.chat.widgets.prompt import LineInput

MAX_TITLE = 200
"""Characters of a title that the list shows."""


class HistoryScreen(ModalScreen[str | None]):
    """Returns the id of the conversation to open, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+f", "leave", "Close"),
        Binding("down", "move(1)", "Next", show=False, priority=True),
        Binding("up", "move(-1)", "Previous", show=False, priority=True),
        Binding("ctrl+r", "rename", "Rename", priority=True),
        Binding("ctrl+d", "delete", "Delete", priority=True),
    ]

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._results: list[Summary] = []
        self._second_press = SecondPress()

    def compose(self) -> ComposeResult:
        """Typing searches, the arrow keys choose."""
        with Vertical(classes="dialog tall") as box:
            box.border_title = "History"
            box.border_subtitle = "Enter opens · Ctrl+R renames · Ctrl+D twice deletes · Esc closes"
            yield LineInput(placeholder="search titles, questions and answers", id="words")
            yield OptionList(id="results")

    def on_mount(self) -> None:
        """List the latest conversations."""
        self.search("")

    @on(Input.Changed)
    def query_changed(self, event: Input.Changed) -> None:
        """Search with every key."""
        self._second_press.forget()
        self.search(event.value)

    def search(self, words: str, highlighted: int = 0) -> None:
        """Fill the list and highlight one entry."""
        try:
            self._results = self._store.search(words)
        except SpecdecError as error:
            self._report(error)
            return
        entries = self.query_one(OptionList)
        entries.clear_options()
        entries.add_options([Option(describe(summary), id=summary.id) for summary in self._results])
        if self._results:
            entries.highlighted = min(highlighted, len(self._results) - 1)

    @on(Input.Submitted)
    def submitted(self) -> None:
        """Open the highlighted conversation with Enter in the search field."""
        if (summary := self.highlighted()) is not None:
            self.dismiss(summary.id)

    @on(OptionList.OptionSelected)
    def selected(self, event: OptionList.OptionSelected) -> None:
        """Open a conversation with a click, or with Enter in the list."""
        self.dismiss(event.option_id)

    def highlighted(self) -> Summary | None:
        """Return the highlighted conversation."""
        index = self.query_one(OptionList).highlighted
        return self._results[index] if index is not None and index < len(self._results) else None

    def action_move(self, step: int) -> None:
        """Move in the list without leaving the search field."""
        entries = self.query_one(OptionList)
        self._second_press.forget()
        if step > 0:
            entries.action_cursor_down()
        else:
            entries.action_cursor_up()

    def action_rename(self) -> None:
        """Ask for a new title."""
        if (summary := self.highlighted()) is not None:
            ask = AskScreen("Title of this conversation", summary.title)
            self.app.push_screen(ask, lambda title: self._renamed(summary, title))

    def _renamed(self, summary: Summary, title: str | None) -> None:
        if title:
            self._change(partial(self._store.rename, summary.id, title))

    def action_delete(self) -> None:
        """Delete with the second press; the first one asks."""
        if (summary := self.highlighted()) is None:
            return
        if not self._second_press.confirms(summary.id):
            self.notify(
                "Press Ctrl+D again to delete it for good.",
                title=summary.title,
                severity="warning",
                timeout=SECONDS_TO_CONFIRM,
            )
            return
        self.app.clear_notifications()
        self._change(partial(self._store.delete, summary.id))
        delete_prefixes()

    def _change(self, change: Callable[[], None]) -> None:
        try:
            change()
        except SpecdecError as error:
            self._report(error)
        else:
            self.search(self.query_one(Input).value, self.query_one(OptionList).highlighted or 0)

    def _report(self, error: SpecdecError) -> None:
        self.notify(error.why, title=error.what, severity="error", markup=False)

    def action_leave(self) -> None:
        """Open nothing."""
        self.dismiss(None)


def describe(summary: Summary) -> Content:
    """Show the title, and below it date, length and the words that match."""
    details = f"{clock(summary.updated)} · {summary.turns} turns"
    parts = [(on_one_line(summary.title[:MAX_TITLE]), "bold"), ("\n  ", ""), (details, "$text-muted")]
    return Content.assemble(*parts, *_matches(summary.snippet))


def clock(seconds: float) -> str:
    """Return a time in the local time zone."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _matches(snippet: str) -> list[tuple[str, str]]:
    """Return the snippet with its matches marked."""
    if not snippet:
        return []
    parts: list[tuple[str, str]] = [(" · ", "$text-muted")]
    for number, piece in enumerate(
        " ".join(snippet.split()).replace(MATCH_END, MATCH_START).split(MATCH_START)
    ):
        parts.append((printable(piece), "bold underline" if number % 2 else "$text-muted"))
    return parts
