"""Texts whose rows had to leave a cache: their keys and values are set aside in memory and put back when a text returns.

Rows are kept in blocks of BLOCK tokens, which form a tree: a block follows the one before it, so texts with the same
beginning share its blocks. What is compared is always token ids, never a hash. A block may be hollow: the cache still
holds its rows, and they are copied only when they are about to leave it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.model.cache import Cache

BLOCK = 128
"""Tokens of a block; a text that ends inside one has a shorter last block."""

Rows = Mapping[str, NDArray[Any]]
"""Keys and values by cache name, each [1, heads, rows, width]."""


_NEAR = 64
"""How far from their ends texts usually differ: by what was drafted last."""


@dataclass(slots=True, eq=False)
class _Block:
    """`rows` is None while the block is hollow; `used` counts the uses of the whole store."""

    tokens: list[int]
    parent: "_Block | None" = None
    rows: Rows | None = None
    nbytes: int = 0
    used: int = 0
    children: list["_Block"] = field(default_factory=list)


class Prefixes:
    """The texts of one model that are set aside, in at most `budget` bytes; the least recently used goes first."""

    def __init__(self, budget: int) -> None:
        self.budget, self.nbytes = budget, 0
        self._root, self._uses = _Block([]), 0

    def put(self, tokens: Sequence[int], kept: int, cache: Cache) -> None:
        """Set aside the rows of `tokens` from `kept` on, as `cache` holds them; those before stay in the cache."""
        self._uses += 1
        block = self._root
        for start in range(0, len(tokens), BLOCK):
            piece = list(tokens[start : start + BLOCK])
            block = self._child(block, piece)
            block.used = self._uses
            stop = start + len(piece)
            if stop <= kept or block.rows is not None:
                continue
            if not self._make_room(cache.row_bytes * len(piece)):
                self._prune(block, self._uses + 1)
                return
            block.rows, block.nbytes = _copy(cache, start, stop), cache.row_bytes * len(piece)
            self.nbytes += block.nbytes
            self._drop_beginnings(block)

    def find(self, tokens: Sequence[int], known: int) -> Iterator[tuple[int, int, Rows]]:
        """What follows the first `known` of `tokens`, in order: (first row of a block, how many of its rows fit, rows)."""
        self._uses += 1
        block, start = self._root, 0
        while block.children and start < len(tokens):
            piece = tokens[start : start + BLOCK]
            block = max(
                block.children, key=lambda each: (common_prefix(each.tokens, piece), each.rows is not None)
            )
            shared = common_prefix(block.tokens, piece)
            if not shared:
                return
            block.used = self._uses
            if start + shared > known:
                if block.rows is None:
                    return
                yield start, shared, block.rows
            if shared < BLOCK:
                return
            start += BLOCK

    def clear(self) -> None:
        """Forget everything."""
        self._root, self.nbytes = _Block([]), 0

    def _child(self, parent: _Block, piece: list[int]) -> _Block:
        """The block of exactly `piece` after `parent`, or one with rows that begins with it; a new one if need be."""
        for child in parent.children:
            if child.tokens == piece or (
                child.rows is not None and common_prefix(child.tokens, piece) == len(piece)
            ):
                return child
        parent.children.append(child := _Block(piece, parent))
        return child

    def _drop_beginnings(self, block: _Block) -> None:
        """Drop shorter blocks that hold nothing but the first rows of `block`: a text has grown since."""
        assert block.parent is not None
        for other in list(block.parent.children):
            if (
                other is not block
                and not other.children
                and common_prefix(block.tokens, other.tokens) == len(other.tokens)
            ):
                self._drop(other)

    def _make_room(self, size: int) -> bool:
        """Drop what was used least recently, ends of texts first, but nothing of the text that is being set aside."""
        while self.nbytes + size > self.budget:
            others = (block for block in self._leaves() if block.used < self._uses)
            if (oldest := min(others, key=lambda block: block.used, default=None)) is None:
                return False
            self._drop(oldest)
        return True

    def _leaves(self) -> list[_Block]:
        found, pending = [], list(self._root.children)
        while pending:
            block = pending.pop()
            pending += block.children
            if not block.children:
                found.append(block)
        return found

    def _drop(self, block: _Block) -> None:
        assert block.parent is not None
        block.parent.children.remove(block)
        self.nbytes -= block.nbytes
        self._prune(block.parent, self._uses)

    def _prune(self, block: _Block, use: int) -> None:
        """Drop a hollow block that nothing follows, and those before it that are the same then, if not in use."""
        while block.parent is not None and block.used < use and block.rows is None and not block.children:
            block.parent.children.remove(block)
            block = block.parent


def _copy(cache: Cache, start: int, stop: int) -> Rows:
    """A copy of rows, in one piece of memory: large pieces get large pages."""
    views = {name: cache.rows(name, start, stop) for name in cache.names}
    memory, at, copies = np.empty(sum(view.nbytes for view in views.values()), np.uint8), 0, {}
    for name, view in views.items():
        copies[name] = memory[at : at + view.nbytes].view(view.dtype).reshape(view.shape)
        copies[name][:] = view
        at += view.nbytes
    return copies


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix; fast for texts that differ near their ends, as in every round."""
    first, second = (each if isinstance(each, list) else list(each) for each in (first, second))
    agreed, end = 0, min(len(first), len(second))  # the first difference, if any, is in between
    probe = max(end - _NEAR, end // 2)
    while agreed < end:
        if first[agreed:probe] == second[agreed:probe]:
            agreed = probe
        else:
            end = probe - 1
        probe = (agreed + end + 1) // 2
    return agreed
