"""One answer while it comes: filled by the engine's thread, read by the screen."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from specdec_onnx.tui.pieces import Piece, counts
from specdec_onnx.tui.session import Request, Round, Session

Clock = Callable[[], float]


@dataclass(slots=True)
class Reply:
    """The growing answer to one request. Only `run` is called from the engine's thread.

    An answer that is gone on with starts with the `pieces` and `rounds` it has; figures are those of the new part.
    """

    turn: int
    request: Request
    clock: Clock = time.perf_counter
    text: str = ""
    pieces: list[Piece] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    reading: tuple[int, int] | None = None
    reason: str | None = None
    error: BaseException | None = None
    final: Mapping[str, Any] | None = None
    asked: float = 0.0
    first: float = 0.0
    last: float = 0.0
    _pieces_before: int = 0
    _rounds_before: int = 0
    _cancelled: bool = False
    _started: bool = False
    _session: Session | None = None
    _lock: Lock = field(default_factory=Lock)
    _inbox: deque[Round] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.asked = self.clock()
        self.text = self.request.partial
        self._pieces_before, self._rounds_before = len(self.pieces), len(self.rounds)

    def run(self, session: Session) -> None:
        """Take the answer from the engine; every end, errors included, sets `reason` last."""
        with self._lock:
            if self._cancelled:
                return
            self._started, self._session, self.asked = True, session, self.clock()
        try:
            reason = self._receive(session)
            self.final = dict(session.statistics())
        except Exception as error:  # noqa: BLE001 - it is shown in place of the answer
            self.error, reason = error, "error"
        self._session = None
        self.reason = reason

    def _receive(self, session: Session) -> str:
        reason = None
        for step in session.reply(self.request, self._read):
            self.last = self.clock()
            self.first = self.first or self.last
            self._inbox.append(step)
            reason = step.reason or reason
            if self._cancelled:
                session.cancel()
        return reason or "cancelled"

    def _read(self, done: int, total: int) -> None:
        self.reading = (done, total)
        if self._cancelled and self._session is not None:
            self._session.cancel()

    def cancel(self) -> None:
        """Ask the engine to stop; what has arrived stays. An answer still waiting for its turn ends at once."""
        with self._lock:
            self._cancelled = True
            session = self._session
            if not self._started:
                self.reason = self.reason or "cancelled"
        if session is not None:
            session.cancel()

    def fail(self, error: BaseException) -> None:
        """End an answer that never started."""
        self.error, self.reason = error, "error"

    @property
    def stopping(self) -> bool:
        """Asked to stop; the engine may need a pass, or to be loaded, before it does."""
        return self._cancelled

    @property
    def finished(self) -> bool:
        """True when nothing more will come and everything was drained."""
        return self.reason is not None and not self._inbox

    def drain(self) -> str:
        """Take over what has arrived; the result is the new text."""
        fresh = []
        while self._inbox:
            step = self._inbox.popleft()
            fresh.append(step.text)
            self.pieces.extend(step.pieces)
            if step.tokens:
                self.rounds.append(step.tokens)
        added = "".join(fresh)
        self.text += added
        return added

    def statistics(self) -> dict[str, Any]:
        """The engine's counts once it has finished, until then the same counted here."""
        return {**self._counted(), **(self.final or {}), "tokens_by_round": list(self.rounds)}

    def _counted(self) -> dict[str, Any]:
        by, own = counts(self.pieces[self._pieces_before :]), self.rounds[self._rounds_before :]
        accepted = by["draft"] + by["suffix"]
        new, drafted, rounds = accepted + by["target"], accepted + by["rejected"], len(own)
        seconds = self.last - self.first
        return {
            "new_tokens": new,
            "rounds": rounds,
            "drafted": drafted,
            "accepted": accepted,
            "tokens_per_round": new / rounds if rounds else 0.0,
            "acceptance_rate": accepted / drafted if drafted else 0.0,
            # The first round's tokens came at the clock's start, so they don't count towards the rate.
            "decode_tokens_per_second": (new - own[0]) / seconds if rounds > 1 and seconds else 0.0,
            "time_to_first_token_ms": 1e3 * (self.first - self.asked) if self.first else 0.0,
            "seconds": (self.last or self.asked) - self.asked,
            "mode": self.request.mode,
        }
