"""The scrolling conversation: follows the output until the reader scrolls up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Button

from specdec_onnx.tui.chat.history.store import Turn
from specdec_onnx.tui.chat.widgets.answer import AnswerView, QuestionView, TurnView, View

WINDOW, MOST = 24, 32
"""Turns that are mounted at first, and above which the oldest are removed again."""
CELLS_BESIDE_TEXT = 6
"""Cells of a line that an answer's text does not get: paddings, a border, the scrollbar."""

VersionOf = Callable[[Turn], tuple[int, int]]
"""Returns which version of a turn is shown, counted from 1, and how many there are."""


class Transcript(VerticalScroll, can_focus=False):
    """The latest turns of a branch; earlier ones are mounted on request, so that long conversations open at once."""

    @dataclass
    class Resized(Message):
        """The number of turns has changed to `count`."""

        count: int

    def __init__(self, version_of: VersionOf, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._version_of = version_of
        self._hidden: list[Turn] = []
        self.page = Vertical(id="turns")
        self.view: View = "text"

    def compose(self) -> ComposeResult:
        """The page is at least as high as the view: an anchored view would scroll above shorter content."""
        yield self.page

    def on_mount(self) -> None:
        """Follow the output from the start."""
        self.anchor()

    async def show_branch(self, branch: Sequence[Turn]) -> None:
        """Replace what is shown by this branch."""
        first = max(0, len(branch) - WINDOW)
        views = await self._rendered_views(branch[first:])
        self._hidden = list(branch[:first])
        async with self.batch():
            await self.page.remove_children()
            await self._mount_above(views)
        self.anchor()
        self.post_message(self.Resized(len(branch)))

    async def update_branch(self, branch: Sequence[Turn]) -> None:
        """Show this branch, and keep the turns at the start that it shares with what is shown."""
        mounted, wanted = self.turns(), branch[len(self._hidden) :]
        shared = 0
        while shared < min(len(mounted), len(wanted)) and mounted[shared].turn.id == wanted[shared].id:
            shared += 1
        if not shared:
            await self.show_branch(branch)
            return
        async with self.batch():
            for view in mounted[shared:]:
                await view.remove()
            await self.page.mount_all(map(self._make_view, wanted[shared:]))
            await self._hide_oldest(branch)
        self.anchor()
        self.post_message(self.Resized(len(branch)))

    async def _hide_oldest(self, branch: Sequence[Turn]) -> None:
        """Remove the oldest turns from a long page, because each one makes every frame slower."""
        if len(self.turns()) <= MOST:
            return
        self._hidden = list(branch[:-WINDOW])
        for view in self.page.children[:-WINDOW]:
            await view.remove()
        await self._mount_above([])

    async def _mount_above(self, views: Sequence[TurnView]) -> None:
        """Mount turns at the top, below a button for those that are still hidden."""
        await self.page.mount_all(views, before=0)
        if self._hidden:
            label = f"▲ {len(self._hidden)} earlier turns"
            await self.page.mount(Button(label, id="earlier", compact=True), before=0)

    async def _rendered_views(self, turns: Sequence[Turn]) -> list[TurnView]:
        """Make the views of stored turns, with answers rendered in a thread, so that the screen need not wait."""
        views = [self._make_view(turn) for turn in turns]
        width = self.screen.size.width - CELLS_BESIDE_TEXT
        for view in views:
            if isinstance(view, AnswerView) and width > 0:
                await view.body.prepare(width)
        return views

    def _make_view(self, turn: Turn) -> TurnView:
        version = self._version_of(turn)
        return QuestionView(turn, version) if turn.role == "user" else AnswerView(turn, version, self.view)

    def turns(self) -> list[TurnView]:
        """Return the mounted turns, oldest first."""
        return [view for view in self.page.children if isinstance(view, TurnView)]

    def answer(self, id: int) -> AnswerView | None:
        """Return the answer with this id if it is mounted."""
        return next((view for view in self.answers() if view.turn.id == id), None)

    def answers(self) -> list[AnswerView]:
        """Return the mounted answers, oldest first."""
        return [view for view in self.page.children if isinstance(view, AnswerView)]

    def focused_turn(self) -> TurnView | None:
        """Return the selected turn, if one has the focus."""
        focused = self.screen.focused
        return focused if isinstance(focused, TurnView) else None

    def set_view(self, view: View) -> None:
        """Show every answer as text, tokens or trace."""
        self.view = view
        for answer in self.answers():
            answer.show(view)

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        """Mount the next batch of earlier turns without moving the text on the screen."""
        event.stop()
        views = await self._rendered_views(self._hidden[-WINDOW:])
        if not event.button.is_attached:
            return  # another branch is shown by now
        self._hidden = self._hidden[:-WINDOW]
        self.release_anchor()
        below = self.max_scroll_y - self.scroll_y
        async with self.batch():
            await event.button.remove()
            await self._mount_above(views)
        self.call_after_refresh(lambda: self.scroll_to(y=self.max_scroll_y - below, animate=False))
