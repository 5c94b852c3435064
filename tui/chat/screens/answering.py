"""The answer under way: it is started, drawn as it streams, saved as it grows, stopped and finished here."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual.notifications import Notification, Notify

from specdec_onnx.tui.chat.courtesy import short_collections
from specdec_onnx.tui.chat.history.store import Turn
from specdec_onnx.tui.chat.reply import Reply, tokens_used, why_nothing_drafted

if TYPE_CHECKING:
    from specdec_onnx.tui.chat.screens.chat import ChatScreen

FRAMES = 25
FRAMES_PER_SAVE = 10


class Answering:
    """At most one answer; `reply` is None between two."""

    def __init__(self, screen: "ChatScreen") -> None:
        self._screen, self._services = screen, screen.services
        self.reply: Reply | None = None
        self._notice: Notification | None = None
        self._pair = ""
        self._frame = 0
        self._drawn = 0
        self._used_before = 0

    @property
    def busy(self) -> bool:
        """Whether an answer is under way."""
        return self.reply is not None

    def idle(self) -> bool:
        """Whether the conversation may change; if an answer is under way, say so until it ends."""
        if self.busy:
            self._hush()
            timeout = self._screen.app.NOTIFICATION_TIMEOUT
            self._notice = Notification("Esc stops it.", "An answer is under way", timeout=timeout)
            self._screen.app.post_message(Notify(self._notice))
        return not self.busy

    async def begin(self, answer: Turn, partial: str = "") -> None:
        """Have the engine write `answer`, from `partial` on."""
        screen, engine = self._screen, self._services.engine
        before = answer.statistics if partial else self._last_statistics()
        self._used_before, self._drawn = tokens_used(before), len(partial)
        rounds = answer.statistics.get("tokens_by_round", ()) if partial else ()
        request = screen.conversation.request(answer, partial)
        self.reply = Reply(answer.id, request, pieces=list(answer.pieces), rounds=list(rounds))
        engine.answer(self.reply)
        self._pair = engine.state.pair
        await screen.transcript.update_branch(screen.conversation.line)
        if partial and (view := screen.transcript.answer(answer.id)) is not None:
            view.resume()
        # A worker, not a timer: the screen must be able to close while a frame is being drawn.
        screen.run_worker(self._follow(self.reply), group="answer")
        screen.refresh_bars()

    def stop(self) -> None:
        """End the answer within one pass; the text so far stays."""
        if self.reply is not None:
            self.reply.cancel()

    async def end(self) -> None:
        """Stop the answer and put it away without waiting for the engine."""
        if self.reply is not None:
            self.reply.cancel()
            self.reply.close()
        while self.reply is not None:
            await asyncio.sleep(1 / FRAMES)

    def leave(self) -> None:
        """Stop the answer and save the text so far: the screen is being closed."""
        if self.reply is not None:
            self.reply.cancel()
            self.reply.close()
            self._save(self.reply)

    def statistics(self) -> Mapping[str, object]:
        """Figures of the answer under way, else of the last one on this branch."""
        return self.reply.statistics() if self.reply is not None else self._last_statistics()

    def tokens_used(self) -> int:
        """Tokens of the context; while an answer comes, its prompt is what was there before or had to be read."""
        used, reply = tokens_used(self.statistics()), self.reply
        if reply is None or reply.final:
            return used
        read = reply.reading[1] if reply.reading else 0
        return used + (read if read > self._used_before else self._used_before + read)

    def _last_statistics(self) -> Mapping[str, object]:
        answers = (turn for turn in reversed(self._screen.conversation.line) if turn.role == "assistant")
        return next((turn.statistics for turn in answers if turn.statistics), {})

    async def _follow(self, reply: Reply) -> None:
        page, ended = self._screen.transcript.page, False
        with short_collections:
            while not ended:
                await asyncio.sleep(1 / FRAMES)
                if not page.is_attached:
                    return  # the screen is being closed: see `leave`
                ended = reply.reason is not None
                self._draw(reply)
            await self._finish(reply)

    def _draw(self, reply: Reply) -> None:
        """Draw the text that is new since the last frame, and save it now and then."""
        view = self._screen.transcript.answer(reply.turn)
        if view is not None and len(reply.text) > self._drawn:
            view.write(reply.text[self._drawn :])
        self._drawn = len(reply.text)
        if view is not None and reply.pieces:
            view.update_tokens(reply.pieces, reply.rounds)
        self._frame += 1
        if self._frame % FRAMES_PER_SAVE == 0 and reply.rounds:
            self._save(reply)
        self._screen.refresh_bars()

    async def _finish(self, reply: Reply) -> None:
        """Save and draw the finished answer, then make room for the next question."""
        screen = self._screen
        self._save(reply)
        await asyncio.to_thread(self._services.recorder.wait)
        screen.attempt(screen.conversation.reload)
        remark = why_nothing_drafted(reply.statistics(), screen.modes())
        if (view := screen.transcript.answer(reply.turn)) is not None:
            await view.finish(reply.reason or "cancelled", self._stored_statistics(reply), remark)
        self.reply = None
        self._hush()
        self._complain(reply)
        screen.refresh_bars()

    def _save(self, reply: Reply) -> None:
        """Hand the answer so far to the history's own thread."""
        self._services.recorder.offer(
            reply.turn, reply.text, reply.reason, reply.pieces, self._stored_statistics(reply)
        )

    def _stored_statistics(self, reply: Reply) -> dict[str, object]:
        error = {"error": getattr(reply.error, "what", str(reply.error))} if reply.error else {}
        return {**reply.statistics(), "pair": self._pair, **error}

    def _complain(self, reply: Reply) -> None:
        if (failure := self._services.recorder.failure()) is not None:
            title = "The answer could not be saved"
            self._screen.notify(str(failure), title=title, severity="error", markup=False)
        if reply.error is not None and reply.error is not self._services.engine.state.error:
            self._screen.report(reply.error)

    def _hush(self) -> None:
        if self._notice is not None:
            self._screen.app.call_later(self._screen.app._unnotify, self._notice)  # after its own Notify
            self._notice = None
