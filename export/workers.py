"""Work for all cores: numpy lets go of Python's lock in large operations, so threads are enough."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from specdec_onnx.models.system import own_cores

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2
"""Results of each thread that may wait to be taken: they bound the memory."""

_inside = threading.local()


def in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """What `function` makes of each item, in the order of the items, computed by one thread a core.

    Inside such a thread it is a plain loop. If the caller stops early, what has not begun is dropped.
    """
    workers = 1 if getattr(_inside, "pool", False) else len(own_cores())
    if workers == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, initializer=_enter) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > _AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def run_all(function: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Call `function` with each item, on all cores."""
    deque(in_order(function, items), maxlen=0)


def _enter() -> None:
    _inside.pool = True
