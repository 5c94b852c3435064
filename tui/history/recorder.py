"""Saves a growing answer from a thread of its own, so that neither the UI nor the engine waits for a disk."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from specdec_onnx.tui.history.store import Store
from specdec_onnx.tui.pieces import Piece


class Recorder:
    """Keeps at most one save under way; the newest state of the answer always wins."""

    def __init__(self, store: Store) -> None:
        self._twin = store.twin()
        self._own = self._twin is not store
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._running: Future[None] | None = None

    def offer(
        self, turn: int, text: str, reason: str | None, pieces: Sequence[Piece], statistics: Mapping[str, Any]
    ) -> bool:
        """Save unless a save is still running; a finished answer (reason given) is always saved."""
        if reason is None and self._running is not None and not self._running.done():
            return False
        state = (turn, text, reason, tuple(pieces), dict(statistics))
        self._running = self._pool.submit(self._twin.update, *state)
        return True

    def failure(self) -> BaseException | None:
        """What went wrong with the last finished save."""
        done = self._running is not None and self._running.done()
        return self._running.exception() if self._running is not None and done else None

    def wait(self) -> None:
        """Return when everything offered is on disk."""
        if self._running is not None:
            self._running.exception()

    def close(self) -> None:
        """Finish the last save and close the own connection."""
        self._pool.shutdown(wait=True)
        if self._own:
            self._twin.close()
