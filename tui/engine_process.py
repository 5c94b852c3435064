"""The engine in a process of its own, so that the screen never waits for it: reading a tokenizer holds Python's lock
for half a second, and a driver that crashes takes its process along."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.child import Child
from specdec_onnx.tui.pieces import Piece
from specdec_onnx.tui.session import Progress, Request, Round

_CHILD = "specdec_onnx.tui.engine_child"
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
