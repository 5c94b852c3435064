"""What can be done with a turn: each action takes the focused turn, or else the last one it fits."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat import clipboard
from specdec_onnx.tui.chat.clipboard import code_blocks
from specdec_onnx.tui.chat.history.store import Role, Turn

if TYPE_CHECKING:
    from specdec_onnx.tui.chat.screens.answering import Answering
    from specdec_onnx.tui.chat.screens.chat import ChatScreen

T = TypeVar("T")
UNFINISHED = (None, "cancelled", "length", "error")


class Turns:
    """Ask, answer again, edit, continue, delete, switch branches, copy; `editing` is the question in the prompt."""

    def __init__(self, screen: "ChatScreen", answering: "Answering") -> None:
        self._screen, self._answering = screen, answering
        self.editing: Turn | None = None
        self._draft = ""
        self._copied = (0, 0)

    def chosen(self, role: Role | None = None) -> Turn | None:
        """The focused turn (or its question or answer), else the last turn of that role."""
        line = self._screen.conversation.line
        focused = self._screen.transcript.focused_turn()
        at = None
        if focused is not None:
            at = next((at for at, turn in enumerate(line) if turn.id == focused.turn.id), None)
        if at is not None:
            if role in (None, line[at].role):
                return line[at]
            at += 1 if role == "assistant" else -1
            if 0 <= at < len(line):
                return line[at]
        return next((turn for turn in reversed(line) if role in (None, turn.role)), None)

    async def ask(self, text: str) -> Turn | None:
        """Add a question, or the one that was edited, to the conversation; the result is its empty answer."""
        conversation, question = self._screen.conversation, self.editing
        self.editing = None
        if question is None:
            answer = await self._change(partial(conversation.ask, text))
        else:
            answer = await self._change(partial(conversation.edit, question, text))
        if answer is not None:
            self._screen.prompt.fill(self._draft if question is not None else "")
        return answer

    async def action_regenerate(self) -> None:
        """Answer the question again, on a branch beside this answer."""
        answer = self.chosen("assistant")
        if answer is None or not self._answering.idle():
            return
        again = await self._change(partial(self._screen.conversation.again, answer))
        if again is not None:
            await self._answering.begin(again)
            self._screen.prompt.focus()

    def action_edit(self) -> None:
        """Take a question into the prompt to change it."""
        question, prompt = self.chosen("user"), self._screen.prompt
        if question is not None and self._answering.idle():
            self._draft, self.editing = prompt.text, question
            prompt.fill(question.text)
            prompt.focus()
            self._screen.refresh_prompt()

    def leave_editing(self) -> None:
        """Put back into the prompt what was there before."""
        self.editing = None
        self._screen.prompt.fill(self._draft)

    async def action_resume(self) -> None:
        """Continue the last answer, if it was cut short."""
        answer = self._screen.conversation.head
        if answer is None or answer.role != "assistant" or not self._answering.idle():
            return
        if answer.reason not in UNFINISHED:
            self._screen.notify("Ctrl+R answers again.", title="This answer is complete")
            return
        await self._answering.begin(answer, partial=answer.text)
        self._screen.prompt.focus()

    async def action_delete(self) -> None:
        """Delete a turn and what followed it, after a second press."""
        turn = self.chosen()
        if turn is None or not self._answering.idle():
            return
        if self._screen.confirmed(
            turn.id, "Delete this turn and everything after it?", "Press again to delete."
        ):
            await self._change(partial(self._screen.conversation.remove, turn))
            await self._update_branch()
            self._screen.prompt.focus()

    async def action_branch(self, offset: int) -> None:
        """Show another version of the focused turn, else of the last turn that has several."""
        turn = self._branching()
        if turn is None or not self._answering.idle():
            return
        if await self._change(partial(self._screen.conversation.switch, turn, offset)):
            await self._update_branch()

    def action_copy(self) -> None:
        """Copy the focused turn, else the last answer."""
        turn = self.chosen() if self._screen.transcript.focused_turn() else self.chosen("assistant")
        reply = self._answering.reply
        if turn is not None:
            text = reply.text if reply is not None and reply.turn == turn.id else turn.text
            if text:
                self.copy(text, f"{len(text.split()):,} words")

    def action_copy_code(self) -> None:
        """Copy the last code block; pressed again, the one before it."""
        answer = self.chosen("assistant")
        blocks = code_blocks(answer.text) if answer is not None else []
        if answer is None or not blocks:
            self._screen.notify("This answer has no code block.")
            return
        number, back = self._copied
        back = (back + 1) % len(blocks) if number == answer.id else 0
        self._copied = (answer.id, back)
        block = blocks[len(blocks) - 1 - back]
        self.copy(block, f"code block {len(blocks) - back} of {len(blocks)}")

    def copy(self, text: str, what: str) -> None:
        """Copy both ways: OSC 52 reaches the terminal over SSH too, the tool a local desktop."""
        self._screen.app.copy_to_clipboard(text)
        self._screen.run_worker(lambda: clipboard.copy(text), thread=True, group="clipboard")
        self._screen.notify(f"Copied {what}.", timeout=2)

    def action_select_turn(self) -> None:
        """Move the focus to the last turn."""
        if turns := self._screen.transcript.turns():
            turns[-1].focus()

    async def _change(self, change: Callable[[], T]) -> T | None:
        """The result of a change to the conversation; None when it fails, because another chat has deleted what it
        needs or the disk is full: then what is left is shown, and an error."""
        self._screen.keep_history()
        try:
            return change()
        except SpecdecError as error:
            self._screen.report(error)
        if self._screen.attempt(self._screen.conversation.reload):
            await self._update_branch()
        return None

    async def _update_branch(self) -> None:
        await self._screen.transcript.update_branch(self._screen.conversation.line)
        self._screen.refresh_bars()

    def _branching(self) -> Turn | None:
        if self._screen.transcript.focused_turn() is not None:
            return self.chosen()
        conversation = self._screen.conversation
        return next((turn for turn in reversed(conversation.line) if conversation.version(turn)[1] > 1), None)
