"""The KV cache of one session: rows of past keys and values, of which the first `length` are valid."""

import ctypes
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.model.signature import Signature

Allocate = Callable[[Sequence[int], type[np.generic]], Any]
"""Makes an OrtValue of zeros with a shape and type, in the memory where the session computes."""

STEP = 2048
"""By how many rows a buffer grows: few copies, and little memory that is never used."""


class Cache:
    """Rows [0, length) are valid; the rows after them are overwritten by the next pass.

    Attributes:
        capacity: The most rows that it may ever have.
        moves: How often it has moved to other memory, so that what was bound to it must be bound again.
    """

    def __init__(self, signature: Signature, capacity: int) -> None:
        self.length, self.capacity, self.moves = 0, capacity, 0
        self._signature = signature
        self._values: dict[str, Any] = {}

    def reserve(self, rows: int) -> None:
        """Make room for so many rows, at most `capacity`. If there is no memory, nothing has changed."""

    def bind(self, binding: Any) -> None:
        """Bind past and present before a pass."""
        raise NotImplementedError

    def advance(self, binding: Any, length: int) -> None:
        """Take over what a pass wrote; the first `length` rows are valid then."""
        self.length = length

    def rollback(self, length: int) -> None:
        """Forget the rows from `length` on; O(1)."""
        if not 0 <= length <= self.length:
            raise SpecdecError(f"cannot roll a cache of {self.length} rows back to {length}")
        self.length = length

    def clear(self) -> None:
        """Free its memory, for good."""
        self.length = 0
        self._values = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that the cache consists of; axis 2 of each is the rows."""
        return tuple(self._values)

    @property
    def movable(self) -> bool:
        """Whether its rows can be copied out and put back: where they are in the memory of the CPU."""
        return all(value.device_name() == "cpu" for value in self._values.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of all tensors."""
        rows = (self.rows(name, 0, 1) for name in self._values)
        return sum(row.itemsize * prod((*row.shape[:2], *row.shape[3:])) for row in rows)

    def rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """A view of some rows of one tensor, [1, heads, rows, width]."""
        return self._view(self._values[name])[:, :, start:stop]

    def _view(self, value: Any) -> NDArray[Any]:
        """A tensor in the memory of the CPU as an array that shares it."""
        shape, kind = value.shape(), self._signature.cache_type
        if not prod(shape):
            return np.empty(shape, kind)
        memory = (ctypes.c_ubyte * value.tensor_size_in_bytes()).from_address(value.data_ptr())
        return np.frombuffer(memory, kind).reshape(shape)

    def extend(self, count: int, source: Callable[[str], NDArray[Any]]) -> None:
        """Append `count` rows; `source(name)` has those of a tensor. If it raises, nothing has changed."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values take now."""
        return sum(value.tensor_size_in_bytes() for value in self._values.values())


class SharedCache(Cache):
    """One buffer, bound to past and present: passes write in place. On the CPU it grows as rows come."""

    def __init__(self, signature: Signature, capacity: int, allocate: Allocate) -> None:
        super().__init__(signature, capacity)
        self._allocate, self._room = allocate, min(capacity, STEP)
        self._values = self._buffers()
        if not self.movable:
            self._room = capacity
            self._values = self._buffers()

    def reserve(self, rows: int) -> None:
        """Grow by whole steps."""
        if rows <= self._room:
            return
        before = self._room
        self._room = min(-(-rows // STEP) * STEP, self.capacity)
        try:
            larger = self._buffers()
        except BaseException:
            self._room = before
            raise
        for name, value in larger.items():
            self._view(value)[:, :, : self.length] = self.rows(name, 0, self.length)
        self._values = larger
        self.moves += 1

    def _buffers(self) -> dict[str, Any]:
        shape = (1, self._signature.cache_heads, self._room, self._signature.cache_width)
        return {name: self._allocate(shape, self._signature.cache_type) for name in self._signature.caches}

    def bind(self, binding: Any) -> None:
        """Bind once, until it moves."""
        for name, value in self._values.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)

    def extend(self, count: int, source: Callable[[str], NDArray[Any]]) -> None:
        """Copy in place."""
        self.reserve(self.length + count)
        for name in self._values:
            self.rows(name, self.length, self.length + count)[:] = source(name)
        self.length += count


class GrowingCache(Cache):
    """Past and present are separate tensors (the portable dialect): a pass concatenates, the next one slices."""

    def __init__(self, signature: Signature, capacity: int, memory: str) -> None:
        super().__init__(signature, capacity)
        self._memory = memory
        empty = np.zeros((1, signature.cache_heads, 0, signature.cache_width), signature.cache_type)
        self._values = dict.fromkeys(signature.caches, ort.OrtValue.ortvalue_from_numpy(empty, memory, 0))

    def bind(self, binding: Any) -> None:
        """Bind the current rows as past and let ONNX Runtime allocate present."""
        for name, value in self._values.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", self._cut(value))
            binding.bind_output(f"present.{name}", self._memory)

    def advance(self, binding: Any, length: int) -> None:
        """Keep what the pass concatenated; rows after `length` are dropped by the next pass."""
        outputs = binding.get_outputs()[-len(self._values) :]
        self._values = dict(zip(self._values, outputs, strict=True))
        self.length = length

    def extend(self, count: int, source: Callable[[str], NDArray[Any]]) -> None:
        """Make longer tensors."""
        self._values = {
            name: self._value(np.concatenate((self.rows(name, 0, self.length), source(name)), axis=2))
            for name in self._values
        }
        self.length += count

    def _cut(self, value: Any) -> Any:
        if value.shape()[2] == self.length:
            return value
        return self._value(np.ascontiguousarray(value.numpy()[:, :, : self.length]))

    def _value(self, rows: NDArray[Any]) -> Any:
        return ort.OrtValue.ortvalue_from_numpy(rows, self._memory, 0)


def make_cache(signature: Signature, capacity: int, allocate: Allocate, memory: str = "cpu") -> Cache:
    """The kind of cache that the graph's attention requires; `memory` names where one that grows is kept."""
    if signature.shares_buffer:
        return SharedCache(signature, capacity, allocate)
    return GrowingCache(signature, capacity, memory)
