"""Which tokens were seen, and how often: what the penalties look at."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_ROOM = 256


class History:
    """Counts of the tokens in prompt and output; the last pushed tokens can be popped again.

    A drafted token is pushed before the row behind it is read and popped after the check, so that every row sees
    exactly the tokens before it. Push and pop are O(1).
    """

    def __init__(self, prompt: Iterable[int] = ()) -> None:
        self._slots = {token: slot for slot, token in enumerate(dict.fromkeys(prompt))}
        self._from_prompt = len(self._slots)
        self._ids = np.zeros(self._from_prompt + _ROOM, np.int64)
        self._ids[: self._from_prompt] = list(self._slots)
        self._produced = np.zeros_like(self._ids)
        self._output: list[int] = []

    @property
    def output(self) -> list[int]:
        """The tokens pushed so far; not to be changed."""
        return self._output

    @property
    def seen(self) -> NDArray[np.int64]:
        """The distinct token ids [n] of prompt and output, in no particular order."""
        return self._ids[: len(self._slots)]

    @property
    def produced(self) -> NDArray[np.int64]:
        """How often each id of `seen` stands in the output [n]; 0 for those only in the prompt."""
        return self._produced[: len(self._slots)]

    def push(self, token: int) -> None:
        """Append one output token."""
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == self._ids.size:
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._produced = np.concatenate([self._produced, np.zeros_like(self._produced)])
        self._ids[slot] = token
        self._produced[slot] += 1
        self._output.append(token)

    def pop(self, count: int = 1) -> None:
        """Take back the last `count` pushed tokens."""
        for _ in range(count):
            token = self._output.pop()
            slot = self._slots[token]
            self._produced[slot] -= 1
            if slot >= self._from_prompt and not self._produced[slot]:
                del self._slots[token]  # first seen last, so its slot is the last one
