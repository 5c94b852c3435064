"""What can be done with a turn: again, edit, go on, delete, copy, branches."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui import clipboard
from specdec_onnx.tui.fences import code_blocks
from specdec_onnx.tui.history.records import Role, Turn
from specdec_onnx.tui.screens.chat_answering import Answering

Changed = TypeVar("Changed")

UNFINISHED = (None, "cancelled", "length", "error")


class TurnActions(Answering):
    """Each action takes the focused turn, or else the last one it fits."""

    _copied: tuple[int, int] = (0, 0)

    def chosen(self, role: Role | None = None) -> Turn | None:
        """The focused turn (or its question or answer), else the last turn of that role."""
        line = self.conversation.line
        focused = self.transcript.focused_turn()
        if focused is not None:
            place = next((at for at, turn in enumerate(line) if turn.id == focused.turn.id), None)
            if place is not None and role in (None, line[place].role):
                return line[place]
            neighbour = None if place is None else place + (1 if role == "assistant" else -1)
            if neighbour is not None and 0 <= neighbour < len(line):
                return line[neighbour]
        return next((turn for turn in reversed(line) if role in (None, turn.role)), None)

    def ready(self) -> bool:
        """Whether the branch may change; while an answer is under way it may not."""
        if self.busy:
            self.say_busy()
        return not self.busy

    async def action_regenerate(self) -> None:
        """Answer the question again, on a branch beside this answer."""
        answer = self.chosen("assistant")
        if answer is None or not self.ready():
            return
        again = await self.changed(partial(self.conversation.again, answer))
        if again is not None:
            await self.begin(again)
            self.prompt.focus()

    def action_edit(self) -> None:
        """Take a question into the prompt to change it."""
        question = self.chosen("user")
        if question is not None and self.ready():
            self.draft, self.editing = self.prompt.text, question
            self.prompt.fill(question.text)
            self.prompt.focus()
            self.refresh_prompt()

    async def action_resume(self) -> None:
        """Go on with the last answer, if it was cut short."""
        answer = self.conversation.head
        if answer is None or answer.role != "assistant" or not self.ready():
            return
        if answer.reason not in UNFINISHED:
            self.notify("Ctrl+R answers again.", title="This answer is complete")
            return
        await self.begin(answer, partial=answer.text)
        self.prompt.focus()

    async def changed(self, change: Callable[[], Changed]) -> Changed | None:
        """What a change of the conversation gives; None when it can't be made, as another chat has deleted what it
        needs or the disk is full: then what is left is shown, and an error."""
        try:
            return change()
        except SpecdecError as error:
            self.report(error)
        if self.kept(self.conversation.reload):
            await self.transcript.keep(self.conversation.line)
            self.refresh_bars()
        return None

    async def action_delete(self) -> None:
        """Delete a turn and what followed it, when asked twice."""
        turn = self.chosen()
        if turn is None or not self.ready():
            return
        if not self.confirmed(turn.id, "Delete this turn and all after it?", "The same again deletes it."):
            return
        await self.changed(partial(self.conversation.remove, turn))
        await self.transcript.keep(self.conversation.line)
        self.refresh_bars()
        self.prompt.focus()

    async def action_branch(self, offset: int) -> None:
        """Show another version of the focused turn, else of the last turn that has several."""
        turn = self._branching()
        if turn is None or not self.ready():
            return
        if await self.changed(partial(self.conversation.switch, turn, offset)):
            await self.transcript.keep(self.conversation.line)
            self.refresh_bars()

    def _branching(self) -> Turn | None:
        if self.transcript.focused_turn() is not None:
            return self.chosen()
        line = reversed(self.conversation.line)
        return next((turn for turn in line if self.conversation.place(turn)[1] > 1), None)

    def action_copy(self) -> None:
        """Copy the focused turn, else the last answer."""
        turn = self.chosen() if self.transcript.focused_turn() else self.chosen("assistant")
        text = (
            self.reply.text
            if turn and self.reply and self.reply.turn == turn.id
            else turn.text
            if turn
            else ""
        )
        if text:
            self.copy(text, f"{len(text.split()):,} words")

    def action_copy_code(self) -> None:
        """Copy the last code block; pressed again, the one before it."""
        answer = self.chosen("assistant")
        blocks = code_blocks(answer.text) if answer is not None else []
        if answer is None or not blocks:
            self.notify("This answer has no code block.")
            return
        number, back = self._copied
        back = (back + 1) % len(blocks) if number == answer.id else 0
        self._copied = (answer.id, back)
        block = blocks[len(blocks) - 1 - back]
        self.copy(block.code, f"code block {len(blocks) - back} of {len(blocks)}")

    def copy(self, text: str, what: str) -> None:
        """Both ways: OSC 52 reaches the terminal also over SSH, the tool reaches a local desktop."""
        self.app.copy_to_clipboard(text)
        self.run_worker(lambda: clipboard.copy(text), thread=True, group="clipboard")
        self.notify(f"Copied {what}.", timeout=2)

    def action_select_turn(self) -> None:
        """Move the focus to the last turn."""
        if turns := self.transcript.turns():
            turns[-1].focus()
