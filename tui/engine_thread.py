"""One thread that owns the engine: it loads, answers and closes in the order it was asked."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

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
