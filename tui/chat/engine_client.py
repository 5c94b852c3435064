"""The engine in a process of its own, so that the screen never waits for it: reading a tokenizer holds Python's lock
for half a second, and a driver that crashes takes its process along."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.courtesy import set_modules_aside, short_collections
from specdec_onnx.tui.chat.reply import Reply
from specdec_onnx.tui.chat.session import Opener, Piece, Progress, Request, Round, Session
from specdec_onnx.tui.child import Child

_CHILD = "specdec_onnx.tui.chat.engine_worker"
PATIENCE = 1.0


class EngineProcess:
    """A `Session` whose engine runs elsewhere; a process that ended is started again with the next question."""

    name: str
    about: str
    device: str
    modes: tuple[str, ...]
    context: int
    exactness: str

    def __init__(self, plan: Mapping[str, Any], on_measure: Callable[[], None]) -> None:
        self._plan, self._on_measure = plan, on_measure
        self._counts: Mapping[str, Any] = {}
        self._start()

    def _start(self) -> None:
        child = Child(_CHILD)
        child.tell(self._plan)
        self._child = child  # from here on `cancel` reaches it, which must come behind the plan
        try:
            while "ready" not in (message := self._next()):
                self._on_measure()
            ready = message["ready"]
        except BaseException:
            self._child.close()
            raise
        self.modes = tuple(ready.pop("modes"))
        for fact, value in ready.items():
            setattr(self, fact, value)

    def _next(self) -> dict[str, Any]:
        message = self._child.hear()
        if message is None:
            why = self._child.last_words()
            self._child.close()
            raise SpecdecError("The engine has ended.", why, "Ask again: it is then started anew.")
        if "failed" in message:
            raise SpecdecError(**message["failed"])
        return message

    def reply(self, request: Request, progress: Progress) -> Iterator[Round]:
        """Stream an answer; one that nobody listens to any more is stopped."""
        if not self._child.running:
            self._child.close()
            self._start()
        self._child.tell({"reply": request.as_dict()})
        ended = False
        try:
            while not ended:
                message = self._next()
                if ended := "ended" in message:
                    self._counts = message["ended"]
                elif "progress" in message:
                    progress(*message["progress"])
                else:
                    text, pieces, reason = message["round"]
                    yield Round(text, tuple(Piece(*piece) for piece in pieces), reason)
        except GeneratorExit:
            self.cancel()
            while "ended" not in self._next():
                pass
            raise

    def statistics(self) -> Mapping[str, Any]:
        """The engine's own counts of the last answer."""
        return self._counts

    def cancel(self) -> None:
        """End the answer within one forward pass."""
        self._child.tell({"cancel": True})

    def close(self) -> None:
        """End the process, which gives its memory back."""
        self._child.close(PATIENCE)


def open_process(
    pair: str,
    device: str,
    on_measure: Callable[[], None] = lambda: None,
    *,
    draft: str | None = None,
    threads: int = 0,
    context: int | None = None,
) -> EngineProcess:
    """Load a pair in a process of its own; SpecdecError when it can't be run here."""
    plan = {"pair": pair, "device": device, "draft": draft, "threads": threads, "context": context}
    return EngineProcess(plan, on_measure)


Task = Callable[[], None]


class EngineThread:
    """A daemon, so that quitting never waits for a long pass; started with the first task."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._thread: Thread | None = None

    def submit(self, task: Task) -> None:
        """Run `task` after all those before it; it must handle its own errors."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="engine", daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def stop(self, patience: float) -> None:
        """Let the tasks at hand end, waiting at most `patience` seconds."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(patience)
            self._thread = None

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


QUIT_PATIENCE = 0.5
"""Seconds that quitting waits for what the engine's thread is at."""


@dataclass(frozen=True, slots=True)
class State:
    """What the host is at: `session` when ready, `error` when loading failed, neither while loading or idle."""

    pair: str = ""
    device: str = "cpu"
    session: Session | None = None
    error: BaseException | None = None
    since: float = 0.0
    measuring: bool = False
    """Loading takes longer, as what passes cost on this machine isn't known yet."""

    @property
    def loading(self) -> bool:
        """A pair was chosen and is neither ready nor failed."""
        return bool(self.pair) and self.session is None and self.error is None

    @property
    def label(self) -> str:
        """The pair's own name, before it is loaded its folder's."""
        return self.session.name if self.session else Path(self.pair).name


class Host:
    """The screens' way to the engine; `changed` is called from either thread."""

    def __init__(self, opener: Opener, changed: Callable[[], None] = lambda: None) -> None:
        self.state = State()
        self.changed = changed
        self._opener = opener
        self._thread = EngineThread()
        self._loaded: Session | None = None

    def open(self, pair: str, device: str = "cpu") -> None:
        """Load a pair in the background, unless it is loaded or loading; the one before it is let go."""
        same = (self.state.pair, self.state.device) == (pair, device)
        if same and self.state.error is None:
            return
        self.state = State(pair, device, since=time.monotonic())
        wanted = self.state
        self._thread.submit(lambda: self._load(wanted))
        self.changed()

    def _load(self, wanted: State) -> None:
        if self.state is not wanted:
            return
        self._let_go()

        def measuring() -> None:
            nonlocal wanted
            if self.state is wanted:
                self.state = wanted = replace(wanted, measuring=True)
                self.changed()

        try:
            self._loaded = self._opener(wanted.pair, wanted.device, measuring)
            loaded = State(wanted.pair, wanted.device, session=self._loaded)
            set_modules_aside()
        except Exception as error:  # noqa: BLE001 - whatever went wrong is shown, the chat goes on
            loaded = State(wanted.pair, wanted.device, error=error)
        if self.state is wanted:
            self.state = loaded
            self.changed()

    def _let_go(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.close()

    def answer(self, reply: Reply) -> None:
        """Answer once the pair is ready and earlier answers have ended; never raises. A pair that could not be opened
        is tried again."""
        if self.state.error is not None:
            self.open(self.state.pair, self.state.device)
        self._thread.submit(lambda: self._answer(reply))

    def _answer(self, reply: Reply) -> None:
        if self.state.session is not None:
            with short_collections:
                reply.run(self.state.session)
        else:
            reply.fail(self.state.error or SpecdecError("No model is open.", fix="Choose one with Ctrl+O."))

    def stop(self) -> None:
        """Let go of the pair, and give the engine's thread a moment to end."""
        self._let_go()
        self._thread.stop(QUIT_PATIENCE)
