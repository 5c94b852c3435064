"""The scrolling conversation: follows the output until the reader scrolls up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Button

from specdec_onnx.tui.chat.history.store import Turn
from specdec_onnx.tui.chat.widgets.answer import QuestionView, TurnView, View

if TYPE_CHECKING:
    from specdec_onnx.tui.chat.widgets.answer import AnswerView


WINDOW, MOST = 24, 32
BESIDE = 6
"""Cells of a line that are not an answer's text: paddings, a border, the scrollbar."""

Place = Callable[[Turn], tuple[int, int]]


class Transcript(VerticalScroll, can_focus=False):
    """Holds the latest turns; earlier ones are mounted when asked for, so long conversations open at once."""

    @dataclass
    class Resized(Message):
        """Turns came or went."""

        count: int

    def __init__(self, place: Place, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._place = place
        self.page = Vertical(id="turns")
        self._hidden: list[Turn] = []
        self.view: View = "text"

    def compose(self) -> ComposeResult:
        """At least as high as the view: an anchored view would scroll above shorter content."""
        yield self.page

    def on_mount(self) -> None:
        """Follow from the start."""
        self.anchor()

    async def show_line(self, line: Sequence[Turn]) -> None:
        """Show this branch in place of what is there."""
        first = max(0, len(line) - WINDOW)
        views = [self.make(turn) for turn in line[first:]]
        await self._prepare(views)
        self._hidden = list(line[:first])
        async with self.batch():
            await self.page.remove_children()
            if self._hidden:
                await self.page.mount(self._earlier())
            await self.page.mount_all(views)
        self.anchor()
        self.post_message(self.Resized(len(line)))

    async def _prepare(self, views: Sequence[TurnView]) -> None:
        """Render answers before they are mounted, where the screen does not have to wait for it."""
        width = self.screen.size.width - BESIDE
        for view in views:
            if view.turn.role == "assistant" and width > 0:
                await cast("AnswerView", view).body.prepare(width)

    async def keep(self, line: Sequence[Turn]) -> None:
        """Bring the screen to this branch, leaving alone the turns both have in common at the start."""
        known = [view.turn.id for view in self.turns()]
        wanted = [turn.id for turn in line[len(self._hidden) :]]
        same = next(
            (at for at, pair in enumerate(zip(known, wanted, strict=False)) if pair[0] != pair[1]), None
        )
        shared = min(len(known), len(wanted)) if same is None else same
        if not shared:
            await self.show_line(line)
            return
        async with self.batch():
            for view in self.turns()[shared:]:
                await view.remove()
            await self.page.mount_all([self.make(turn) for turn in line[len(self._hidden) + shared :]])
            await self._put_away(line)
        self.anchor()
        self.post_message(self.Resized(len(line)))

    async def _put_away(self, line: Sequence[Turn]) -> None:
        """Take the oldest turns off the page again when it has become long: each costs something with every frame."""
        if len(self.turns()) <= MOST:
            return
        self._hidden = list(line[:-WINDOW])
        for view in self.page.children[:-WINDOW]:
            await view.remove()
        await self.page.mount(self._earlier(), before=0)

    def make(self, turn: Turn) -> TurnView:
        """The widget for a turn."""
        # Markdown is the slowest import of all; the first page does without.
        from specdec_onnx.tui.chat.widgets.answer import AnswerView

        place = self._place(turn)
        return QuestionView(turn, place) if turn.role == "user" else AnswerView(turn, place, self.view)

    def turns(self) -> list[TurnView]:
        """The mounted turns, oldest first."""
        return [view for view in self.page.children if isinstance(view, TurnView)]

    def answer(self, number: int) -> "AnswerView | None":
        """The mounted answer with this id."""
        return next((view for view in self.answers() if view.turn.id == number), None)

    def answers(self) -> "list[AnswerView]":
        """The mounted answers, oldest first."""
        return [cast("AnswerView", view) for view in self.turns() if view.turn.role == "assistant"]

    def focused_turn(self) -> TurnView | None:
        """The turn that has the focus."""
        focused = self.screen.focused
        return focused if isinstance(focused, TurnView) else None

    def set_view(self, view: View) -> None:
        """Show every answer as text, tokens or trace."""
        self.view = view
        for answer in self.answers():
            answer.show(view)

    def _earlier(self) -> Button:
        return Button(f"▲ {len(self._hidden)} earlier turns", id="earlier", compact=True)

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        """Mount the next batch of earlier turns and stay where the reader is."""
        event.stop()
        views = [self.make(turn) for turn in self._hidden[-WINDOW:]]
        await self._prepare(views)
        if not event.button.is_attached:
            return  # another branch is shown by now
        self._hidden = self._hidden[:-WINDOW]
        self.release_anchor()
        below = self.max_scroll_y - self.scroll_y
        async with self.batch():
            await event.button.remove()
            await self.page.mount_all(views, before=0)
            if self._hidden:
                await self.page.mount(self._earlier(), before=0)
        self.call_after_refresh(lambda: self.scroll_to(y=self.max_scroll_y - below, animate=False))
