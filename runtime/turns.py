"""Answers take turns: an engine has one set of caches, so one answer runs at a time, in the order in which they begin.

An answer begins when its first step is read. It then holds the engine until it ends, or is closed, dropped or
cancelled; answers that begin meanwhile queue. A half-read answer would keep the others waiting for as long as nobody
reads on, so it can be put off between two steps. It loses nothing by that: when it is read again, it queues, reads
again what the caches have lost of its text, and continues with the same tokens. Two rules say when this happens:

- At once, when the one thread that has read an answer begins another: it cannot read the first one while it waits.
- After `PATIENCE` seconds without a reader, when others wait. A long pass does not count as a pause.

No rule asks who abandoned an answer and who is only busy elsewhere: a thread can't tell. Coroutines share one, and a
web server reads each step in another. A wrong guess costs time, never an answer.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from threading import Condition, Lock, get_ident
from weakref import WeakSet

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.generate import Answer, Result, Step
from specdec_onnx.runtime.model.decoder import Cancelled

Steps = Generator[Step, None, None]

PATIENCE = 2.0
"""How long a half-read answer keeps others waiting, in seconds."""

_NAP = 1.0  # on Windows, Ctrl-C only arrives when a wait ends


class Turn:
    """One answer's place in the queue; `stopped` once it was cancelled. Everything else belongs to `Turns`."""

    def __init__(self, number: int, on_begin: Callable[[], None], stoppable: bool) -> None:
        self.stopped, self.stoppable, self.on_begin = False, stoppable, on_begin
        # how many turns had been requested when it was, and when it began
        self.number = self.begun_at = number
        self.reader, self.shared = get_ident(), False
        self.paused_since: float | None = None


class Turns:
    """The queue for one engine. `interrupt` stops the pass in flight and any later one, until `allow`.

    The lock is never held during a pass. The thread that holds it may take it again, because a signal handler may
    cancel, and the garbage collector may drop an answer, at any moment.
    """

    def __init__(self, allow: Callable[[], None], interrupt: Callable[[], None]) -> None:
        self.patience = PATIENCE
        self._allow, self._interrupt = allow, interrupt
        self._changed = Condition()
        self._asked: WeakSet[Turn] = WeakSet()
        self._line: deque[Turn] = deque()
        self._holder: Turn | None = None
        self._count = 0

    def ask(self, on_begin: Callable[[], None] = lambda: None, *, stoppable: bool = True) -> Turn:
        """A turn for an answer that may begin later, or never; calls `on_begin` when it does or is found cancelled."""
        with self._changed:
            self._count += 1
            turn = Turn(self._count, on_begin, stoppable)
            self._asked.add(turn)
        return turn

    def begin(self, turn: Turn) -> None:
        """Wait for the turn, or for its next one. Raises Cancelled if it was stopped meanwhile.

        Raises SpecdecError inside a running answer.
        """
        with self._changed:
            turn.reader = get_ident()
            if not turn.stopped:
                self._put_off_own(turn.reader)
            self._line.append(turn)
            try:
                while not self._may_begin(turn):
                    self._changed.wait(max(0.0, min(_NAP, self._patience_left())))
            finally:
                self._line.remove(turn)
                self._changed.notify_all()
            if not turn.stopped:
                self._allow()
                self._holder, turn.begun_at, turn.paused_since = turn, self._count, None
            if turn in self._asked:
                turn.on_begin()
                # a signal handler may cancel before any line: only now it has begun
                self._asked.discard(turn)
            if turn.stopped:
                self.end(turn)
                raise Cancelled

    def steps(
        self, turn: Turn, answer: Answer, on_progress: Callable[[int, int], None] | None = None
    ) -> Steps:
        """The steps of an answer, each made while it is the answer's turn; a cancelled answer ends with a last step."""
        try:
            self.begin(turn)
            answer.read(on_progress)
            for step in answer.steps():
                if step.finish_reason:
                    self.end(turn)  # so that nobody has to read beyond the last step
                    yield step
                    return
                self.pause(turn)
                yield step
                if turn.stopped:
                    raise Cancelled
                if not self.regain(turn):
                    self.begin(turn)  # the answer was put off
                    answer.read()
        except Cancelled:
            self._leave(turn, answer)
            yield answer.cancelled()
        finally:
            self._leave(turn, answer)

    @contextmanager
    def only(self) -> Iterator[None]:
        """Take a turn for something other than an answer."""
        turn = self.ask(stoppable=False)
        self.begin(turn)
        try:
            yield
        finally:
            self.end(turn)

    def pause(self, turn: Turn) -> None:
        """A step was read: nothing runs until the next one is."""
        with self._changed:
            turn.paused_since = time.monotonic()
            if self._line:
                self._changed.notify_all()

    def regain(self, turn: Turn) -> bool:
        """Resume a paused turn; False if it has lost its turn."""
        with self._changed:
            if self._holder is not turn:
                return False
            reader, turn.reader, turn.paused_since = turn.reader, get_ident(), None
            turn.shared |= reader != turn.reader
            return True

    def end(self, turn: Turn) -> None:
        """Let the next one begin; does nothing if it is another's turn."""
        with self._changed:
            if self._holder is turn:
                self._holder = None
                self._changed.notify_all()

    def cancel(self, turn: Turn | None = None) -> None:
        """Stop one answer, begun or not; without `turn`, whatever a person who presses Stop means.

        That is the running answer, and if its thread has left it half-read to request others, these too. If none is
        running, it is every answer that was requested and has not begun.
        """
        with self._changed:
            for one in [turn] if turn is not None else self._meant():
                one.stopped = one.stoppable
                if one is self._holder and one.stopped:
                    if one.paused_since is None:
                        self._interrupt()
                    else:
                        self._holder = None  # nothing of it runs
            self._changed.notify_all()

    def cancel_all(self) -> None:
        """Stop every answer, begun or not."""
        with self._changed:
            for turn in list(self._asked) + list(self._line):
                turn.stopped = turn.stoppable
            if self._holder is not None:
                self.cancel(self._holder)
            self._changed.notify_all()

    def _leave(self, turn: Turn, answer: Answer) -> None:
        """Tidy up and end the turn, unless the answer has lost it."""
        if self.regain(turn):
            answer.tidy()
            self.end(turn)

    def _put_off_own(self, reader: int) -> None:
        """The thread begins another answer: put off the one that it left half-read, unless other threads read it too."""
        holder = self._holder
        if holder is None or holder.reader != reader:
            return
        if holder.paused_since is None:
            raise SpecdecError(
                "an answer cannot be requested inside another one",
                "the engine is busy with that one, in the same thread",
                "wait for its end, or use another thread",
            )
        if not holder.shared:
            self.end(holder)

    def _may_begin(self, turn: Turn) -> bool:
        if turn.stopped:
            return True
        if self._line[0] is not turn:
            return False
        if self._patience_left() <= 0:
            self._holder = None
        return self._holder is None

    def _patience_left(self) -> float:
        """Seconds until a paused answer is put off; infinite while one is running."""
        if self._holder is None or self._holder.paused_since is None:
            return float("inf")
        return self._holder.paused_since + self.patience - time.monotonic()

    def _meant(self) -> list[Turn]:
        holder = self._holder
        if holder is None:
            return [self._line[0]] if self._line else list(self._asked)
        if holder.paused_since is None:
            return [holder]
        later = (t for t in self._asked if t.reader == holder.reader and t.number > holder.begun_at)
        return [holder, *later]


class Stream(Iterator[Step]):
    """An answer that is read step by step; `result` is the answer so far, with its statistics.

    Nothing happens before the first step is read. Any thread may read any step, but one at a time. A coroutine reads
    with `async for`: each step is generated in a thread, and the event loop stays free; if its task is cancelled, so is
    the answer. Dropping the object closes it.
    """

    def __init__(self, steps: Steps, result: Result, cancel: Callable[[], None]) -> None:
        self._steps, self.result, self._reading = steps, result, Lock()
        self.cancel = cancel
        """End this answer within one forward pass, or before it begins; may be called from any thread."""

    def __next__(self) -> Step:
        if not self._reading.acquire(blocking=False):
            why = "each step can be read once, by one thread"
            raise SpecdecError(
                "this answer is being read already", why, "let one thread read it, and share its steps"
            )
        try:
            return next(self._steps)
        finally:
            self._reading.release()

    async def __aiter__(self) -> AsyncIterator[Step]:
        from asyncio import to_thread

        try:
            while (step := await to_thread(next, self, None)) is not None:
                yield step
        finally:
            if self.result.finish_reason is None:
                self.cancel()

    def close(self) -> None:
        """Stop reading; the engine is free for the next answer."""
        self._steps.close()

    def through(self, steps: Steps) -> "Stream":
        """The same answer, read through the generator `steps`."""
        return Stream(steps, self.result, self.cancel)
