"""Holds the loaded pair: nothing, loading, ready or failed. Prompts may come before it is ready."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.courtesy import set_modules_aside, short_collections
from specdec_onnx.tui.engine_thread import EngineThread
from specdec_onnx.tui.reply import Reply
from specdec_onnx.tui.session import Opener, Session

PATIENCE = 0.5
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
        self._thread.stop(PATIENCE)
