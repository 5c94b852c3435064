"""The answer under way: start, draw 25 times a second, save, stop, finish."""

import asyncio
from collections.abc import Callable, Mapping

from textual.notifications import Notification, Notify

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.courtesy import short_collections
from specdec_onnx.tui.figures import tokens_used
from specdec_onnx.tui.history.records import Turn
from specdec_onnx.tui.reply import Reply
from specdec_onnx.tui.screens.chat_base import ChatBase
from specdec_onnx.tui.session import Request
from specdec_onnx.tui.why import why_nothing_drafted
from specdec_onnx.tui.widgets.job import JobBar

FRAMES = 25
GIVING_UP = "Esc again does. What has come is kept for the next time."
FRAMES_PER_SAVE = 10


class Answering(ChatBase):
    """One answer at a time; the screen only ever reads what the engine's thread has left for it."""

    _frame = 0
    _busy: Notification | None = None
    _pair = ""
    _before = 0

    async def begin(self, answer: Turn, partial: str = "") -> None:
        """Have the engine write `answer`, from `partial` on."""
        settings = self.conversation.settings
        request = Request(self.conversation.messages(answer), settings, self.mode(), partial)
        earlier = answer.statistics.get("tokens_by_round", ()) if partial else ()
        self.reply = Reply(answer.id, request, pieces=list(answer.pieces), rounds=list(earlier))
        self._before = tokens_used(answer.statistics if partial else self._last_finished())
        self.services.host.answer(self.reply)
        self._pair = self.services.host.state.pair
        await self.transcript.keep(self.conversation.line)
        if partial and (view := self.transcript.answer(answer.id)) is not None:
            view.go_on()
        # A worker, not a timer: the screen must be able to close while a frame is being drawn.
        self.run_worker(self._follow(self.reply), group="answer")
        self.refresh_bars()

    async def _follow(self, reply: Reply) -> None:
        page = self.transcript.page
        with short_collections:
            while not reply.finished:
                await asyncio.sleep(1 / FRAMES)
                if not page.is_attached:
                    return  # the screen is being taken down; on_unmount keeps what has come
                self.tick(reply)
            await self.finish(reply)

    def tick(self, reply: Reply) -> None:
        """Draw and save what has come since the last frame."""
        fresh = reply.drain()
        view = self.transcript.answer(reply.turn)
        if fresh and view is not None:
            view.write(fresh)
        if view is not None and reply.pieces:
            view.update_tokens(reply.pieces, reply.rounds)
        self._frame += 1
        if self._frame % FRAMES_PER_SAVE == 0 and reply.rounds:
            self.save(reply)
        self.refresh_bars()

    def save(self, reply: Reply) -> None:
        """Hand the answer so far to the history's own thread."""
        self.services.recorder.offer(reply.turn, reply.text, reply.reason, reply.pieces, self.figures(reply))

    def used(self, statistics: Mapping[str, object]) -> int:
        """While an answer comes, the prompt is what was there before and what had to be read."""
        reply = self.reply
        if reply is None or reply.final:
            return tokens_used(statistics)
        read = reply.reading[1] if reply.reading else 0
        return (read if read > self._before else self._before + read) + tokens_used(statistics)

    def figures(self, reply: Reply) -> dict[str, object]:
        """The statistics as they are stored."""
        failed = {"error": getattr(reply.error, "what", str(reply.error))} if reply.error else {}
        return {**reply.statistics(), "pair": self._pair, **failed}

    async def finish(self, reply: Reply) -> None:
        """Save and draw the finished answer, then make room for the next question."""
        self.save(reply)
        await asyncio.to_thread(self.services.recorder.wait)
        self.kept(self.conversation.reload)
        remark = why_nothing_drafted(reply.statistics(), self.modes())
        if (view := self.transcript.answer(reply.turn)) is not None:
            await view.finish(reply.reason or "cancelled", self.figures(reply), remark)
        self.reply = None
        self._hush()
        self._complain(reply)
        self.refresh_bars()

    def say_busy(self) -> None:
        """Say, until the answer ends, that it has to end first."""
        self._hush()
        self._busy = Notification(
            "Esc stops it.", "An answer is under way", timeout=self.app.NOTIFICATION_TIMEOUT
        )
        self.app.post_message(Notify(self._busy))

    def _hush(self) -> None:
        if self._busy is not None:
            self.app.call_later(self.app._unnotify, self._busy)  # behind its own Notify
            self._busy = None

    async def end_answer(self) -> None:
        """Stop the answer under way, if there is one, and put it away with what has come."""
        if self.reply is not None:
            self.reply.cancel()
            self.reply.reason = self.reply.reason or "cancelled"
        while self.reply is not None:
            await asyncio.sleep(1 / FRAMES)

    def on_unmount(self) -> None:
        """Leaving mid-answer keeps what has come."""
        if (reply := self.reply) is not None:
            reply.cancel()
            reply.drain()
            reply.reason = reply.reason or "cancelled"
            self.save(reply)

    def _complain(self, reply: Reply) -> None:
        if (failure := self.services.recorder.failure()) is not None:
            self.notify(str(failure), title="The answer could not be saved", severity="error", markup=False)
        if reply.error is not None and reply.error is not self.services.host.state.error:
            self.report(reply.error)

    def report(self, error: BaseException) -> None:
        """Show an error as what happened, why, and what to do."""
        if isinstance(error, SpecdecError):
            text = "\n".join(part for part in (error.why, error.fix) if part)
            self.notify(text, title=error.what, severity="error", timeout=12, markup=False)
        else:
            self.notify(str(error), title=type(error).__name__, severity="error", timeout=12, markup=False)

    def kept(self, change: Callable[[], object]) -> bool:
        """Store something; when that fails, say so and go on without."""
        try:
            change()
        except SpecdecError as error:
            self.report(error)
            return False
        return True

    async def action_stop(self) -> None:
        """Stop the answer and keep what came; else leave editing; else go back to the prompt; from there, pressed
        twice, give up a download."""
        job, at_prompt = self.query_one(JobBar), self.focused in (self.prompt, self.query_one("#job-cancel"))
        if self.reply is not None:
            self.reply.cancel()
        elif self.editing is not None:
            self.editing = None
            self.prompt.fill(self.draft)
        elif job.running and at_prompt and self.confirmed(job, "Give this download up?", GIVING_UP):
            job.give_up()
        self.prompt.focus()
        self.refresh_prompt()
