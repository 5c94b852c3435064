"""The chat's way to the engine. It runs in a process of its own: reading a tokenizer holds Python's lock for half a
second, which would stop the screen, and a driver that crashes takes its process along."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.courtesy import set_modules_aside, short_collections
from specdec_onnx.tui.chat.reply import Reply
from specdec_onnx.tui.chat.session import OnProgress, Opener, Piece, Request, Round, Session
from specdec_onnx.tui.child import AsyncChild

WORKER = "specdec_onnx.tui.chat.engine_worker"
PATIENCE = 1.0
"""Seconds that a process is given to end by itself."""


@dataclass(frozen=True, slots=True)
class State:
    """Which pair is open: `session` when it is ready, `error` when loading failed, neither while it loads."""

    pair: str = ""
    device: str = "cpu"
    session: Session | None = None
    error: BaseException | None = None
    measuring: bool = False
    """Loading takes longer: what passes cost on this machine isn't known yet."""

    @property
    def loading(self) -> bool:
        """A pair was chosen and is neither ready nor failed."""
        return bool(self.pair) and self.session is None and self.error is None

    @property
    def label(self) -> str:
        """The pair's own name, or its folder's before it is loaded."""
        return self.session.name if self.session else Path(self.pair).name


class EngineClient:
    """Holds one loaded pair and has it answer, one reply at a time; `changed` is called when `state` changes."""

    def __init__(self, opener: Opener, changed: Callable[[], None] = lambda: None) -> None:
        self.state = State()
        self.changed = changed
        self._opener = opener
        self._session: Session | None = None
        self._in_use = asyncio.Lock()
        self._loading: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()

    def open(self, pair: str, device: str = "cpu") -> None:
        """Load a pair, unless it is loaded or loading, once the answer under way has ended; frees the one before."""
        if (self.state.pair, self.state.device) != (pair, device) or self.state.error is not None:
            self._load(pair, device)

    def answer(self, reply: Reply) -> None:
        """Fill `reply` once the pair is ready and earlier answers have ended.

        A pair that could not be loaded, or whose process has ended, is loaded again.
        """
        session = self.state.session
        if self.state.error is not None or (session is not None and not session.running):
            self._load(self.state.pair, self.state.device)
        task = asyncio.create_task(self._answer(reply))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def stop(self) -> None:
        """Give up what is loading or answering, and free the pair."""
        tasks = [task for task in (self._loading, *self._answers) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._free()

    def _load(self, pair: str, device: str) -> None:
        if self._loading is not None:
            self._loading.cancel()
        self._set(State(pair, device))
        self._loading = asyncio.create_task(self._open())

    async def _open(self) -> None:
        async with self._in_use:
            await self._free()
            wanted = self.state
            try:
                session = await self._opener(
                    wanted.pair, wanted.device, lambda: self._set(replace(wanted, measuring=True))
                )
            except Exception as error:  # noqa: BLE001 - shown on the screen; the chat stays usable
                self._set(replace(wanted, error=error))
                return
            self._session = session
            set_modules_aside()
            self._set(replace(wanted, session=session))

    async def _answer(self, reply: Reply) -> None:
        while self.state.loading and self._loading is not None:
            await asyncio.wait([self._loading])
        async with self._in_use:
            if reply.reason is not None:  # stopped before it began
                return
            session = self._session
            if session is None:
                reply.fail(
                    self.state.error or SpecdecError("No model is open.", fix="Choose one with Ctrl+O.")
                )
                return
            reply.begin(session.cancel)
            try:
                with short_collections:
                    async for round_ in session.reply(reply.request, reply.read):
                        reply.take(round_)
                reply.end(session.statistics())
            except Exception as error:  # noqa: BLE001 - shown in place of the answer
                reply.fail(error)

    async def _free(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _set(self, state: State) -> None:
        self.state = state
        self.changed()


@dataclass
class EngineProcess:
    """A `Session` whose engine runs in a process of its own."""

    child: AsyncChild
    name: str
    about: str
    device: str
    modes: tuple[str, ...]
    context: int
    exactness: str
    _counts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self.child.running

    async def reply(self, request: Request, on_progress: OnProgress) -> AsyncIterator[Round]:
        """Stream an answer; one that is no longer read is stopped."""
        self.child.tell({"reply": request.as_dict()})
        try:
            while "ended" not in (message := await _next(self.child)):
                if "progress" in message:
                    on_progress(*message["progress"])
                else:
                    text, pieces, reason = message["round"]
                    yield Round(text, tuple(Piece(*piece) for piece in pieces), reason)
            self._counts = message["ended"]
        except GeneratorExit:
            self.cancel()
            while "ended" not in await _next(self.child):
                pass
            raise

    def statistics(self) -> Mapping[str, Any]:
        """The engine's own counts of the last answer."""
        return self._counts

    def cancel(self) -> None:
        """End the answer within one forward pass."""
        self.child.tell({"cancel": True})

    async def close(self) -> None:
        """End the process, which frees its memory."""
        await self.child.close(PATIENCE)


async def open_process(
    pair: str,
    device: str,
    on_measure: Callable[[], None] = lambda: None,
    *,
    draft: str | None = None,
    threads: int = 0,
    context: int | None = None,
    cache: str = "auto",
) -> EngineProcess:
    """Load a pair in a process of its own; SpecdecError when it can't run here."""
    child = await AsyncChild.start(WORKER)
    options = {"draft": draft, "threads": threads, "context": context, "cache": cache}
    child.tell({"pair": pair, "device": device, **options})
    try:
        while "ready" not in (message := await _next(child)):
            on_measure()
    except BaseException:
        await child.close()
        raise
    ready = message["ready"]
    return EngineProcess(child, **{**ready, "modes": tuple(ready["modes"])})


async def _next(child: AsyncChild) -> dict[str, Any]:
    """The next message; SpecdecError when it reports a failure or the process has ended."""
    message = await child.hear()
    if message is None:
        raise SpecdecError("The engine has stopped.", await child.last_words(), "Ask again to restart it.")
    if "failed" in message:
        raise SpecdecError(**message["failed"])
    return message
