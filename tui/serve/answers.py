"""Answers of the engine for asyncio: each is generated in a thread, and ends when nobody wants it any more."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from specdec_onnx.models.errors import SpecdecError, explain
from specdec_onnx.runtime.engine import Engine
from specdec_onnx.runtime.generate import Result, Step
from specdec_onnx.runtime.turns import Stream
from specdec_onnx.tui.serve.metrics import Metrics
from specdec_onnx.tui.serve.protocol import Ask, Refused

RETRY_SECONDS = 5
_GLANCE = 0.1
"""Seconds between two looks whether a client that waits is still there."""


_NOTHING_YET = object()


class Answers:
    """The engine's answers; at most `most` are under way or wait."""

    def __init__(self, engine: Engine, metrics: Metrics, most: int) -> None:
        self._engine, self._metrics, self._most = engine, metrics, most
        self._threads = ThreadPoolExecutor(most, "answer")
        self._opener = ThreadPoolExecutor(
            1, "opener"
        )  # one: each thread keeps memory for the longest prompt it read
        self.under_way = 0

    async def begin(self, ask: Ask, gone: Callable[[], Awaitable[bool]]) -> "Answering":
        """An answer of which the first step is there. Raises Refused if the queue is full or the engine objects."""
        if self.under_way >= self._most:
            raise Refused(
                f"{self._most} requests are under way: try again later", status=429, code="queue_full"
            )
        self.under_way += 1
        try:
            stream = await asyncio.get_running_loop().run_in_executor(self._opener, self._open, ask)
        except BaseException:
            self.under_way -= 1
            raise
        answering = Answering(stream, self._metrics, gone, ask.guided_by)
        asyncio.get_running_loop().run_in_executor(self._threads, answering.run).add_done_callback(self._over)
        try:
            await answering.wait_for_first()
        except BaseException:
            answering.cancel()
            raise
        return answering

    def _open(self, ask: Ask) -> Stream:
        """The answer before its first step; a long prompt and a large grammar take a while to read."""
        options: dict[str, Any] = {"logprobs": ask.logprobs, "constraint": ask.constraint}
        try:
            tokens = ask.tokens(self._engine.pair.target)
            return self._engine.stream(tokens, parameters=ask.parameters, **options)
        except SpecdecError as error:
            raise _refused(error, ask.guided_by) or Refused.because(error, "messages") from error

    def _over(self, done: Any) -> None:
        self.under_way -= 1


class Answering:
    """One answer: a thread pushes its steps, a coroutine takes them."""

    def __init__(
        self, stream: Stream, metrics: Metrics, gone: Callable[[], Awaitable[bool]], guided_by: str
    ) -> None:
        self._stream, self._metrics, self._gone, self._guided_by = stream, metrics, gone, guided_by
        self._loop, self._steps = asyncio.get_running_loop(), asyncio.Queue[Step | BaseException | None]()
        self._first: Step | None = None
        self._wanted, self._look_at = True, self._loop.time() + _GLANCE

    @property
    def result(self) -> Result:
        """The answer so far."""
        return self._stream.result

    def run(self) -> None:
        """Generate; runs in a thread."""
        try:
            for step in self._stream:
                self._push(step)
            self._push(None)
        except BaseException as error:  # noqa: BLE001 - the coroutine reports it
            self._push(error)
        finally:
            self._metrics.count_answer(self.result.statistics)
            if not self._wanted:
                self._metrics.count("cancelled")

    def cancel(self) -> None:
        """End within one pass; nobody takes further steps."""
        if self._wanted and self.result.finish_reason is None:
            self._wanted = False
            self._stream.cancel()

    async def wait_for_first(self) -> None:
        """Wait until the answer has begun."""
        self._first = await self._next()

    def stream(self) -> None:
        """From now on the response itself notices that the client leaves."""
        self._gone = _never

    async def steps(self) -> AsyncIterator[Step]:
        """The steps. Raises ClientGone when the client leaves, and Refused for an error of the engine."""
        step = self._first
        while step is not None:
            yield step
            step = await self._next()

    async def _next(self) -> Step | None:
        found = await self._await_step()
        while found is _NOTHING_YET or self._loop.time() >= self._look_at:
            self._look_at = self._loop.time() + _GLANCE
            if await self._gone():
                self.cancel()
                raise ClientGone
            if found is _NOTHING_YET:
                found = await self._await_step()
        if isinstance(found, BaseException):
            raise as_refused(found, self._guided_by) from found
        return found if isinstance(found, Step) else None

    async def _await_step(self) -> Any:
        try:
            return await asyncio.wait_for(self._steps.get(), _GLANCE)
        except TimeoutError:
            return _NOTHING_YET

    def _push(self, item: Step | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._steps.put_nowait, item)


async def _never() -> bool:
    return False


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def as_refused(error: BaseException, guided_by: str) -> Refused:
    """An error of the engine as the client sees it: without our own faults' details."""
    known = explain(error) if isinstance(error, Exception) else None
    if known is None:
        print(f"internal error: {type(error).__name__}: {error}", file=sys.stderr)
        return Refused("the server failed; its log says why", status=500)
    return _refused(known, guided_by) or Refused.because(known, status=500)


def _refused(error: SpecdecError, guided_by: str) -> Refused | None:
    """The refusal for an error that only this answer's own settings can cause."""
    if "context" in error.what:
        return Refused.because(error, "messages", code="context_length_exceeded")
    return Refused.because(error, guided_by) if "grammar" in error.what else None
