"""The KV cache of one session: rows of past keys and values, cut back by absolute length."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.model.signature import Signature

Allocate = Callable[[Sequence[int], type[np.generic]], Any]
"""Makes an OrtValue of zeros of a shape and type where the session computes."""


class Cache(Protocol):
    """Rows [0, length) are valid; whatever lies behind them is overwritten by the next pass."""

    length: int
    capacity: int

    def bind(self, binding: Any) -> None:
        """Bind past and present before a pass."""

    def advance(self, binding: Any, length: int) -> None:
        """Take over what a pass wrote and call the first `length` rows valid."""

    def rollback(self, length: int) -> None:
        """Forget the rows from `length` on."""

    @property
    def nbytes(self) -> int:
        """Bytes held by keys and values."""


def make_cache(signature: Signature, capacity: int, allocate: Allocate, memory: str = "cpu") -> Cache:
    """The kind of cache that the graph's attention works with; `memory` names where one that grows is kept."""
    if signature.shares_buffer:
        return SharedCache(signature, capacity, allocate)
    return GrowingCache(signature, capacity, memory)


def _checked(length: int, current: int) -> int:
    if not 0 <= length <= current:
        raise SpecdecError(f"cannot roll a cache of {current} rows back to {length}")
    return length


class SharedCache:
    """One buffer of full capacity bound to past and present: written in place, rollback is a smaller length."""

    def __init__(self, signature: Signature, capacity: int, allocate: Allocate) -> None:
        shape = (1, signature.cache_heads, capacity, signature.cache_width)
        self.length, self.capacity = 0, capacity
        self._values = {name: allocate(shape, signature.cache_type) for name in signature.caches}

    def bind(self, binding: Any) -> None:
        """Bind once: the addresses never change."""
        for name, value in self._values.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)

    def advance(self, binding: Any, length: int) -> None:
        """Count the rows that the pass wrote in place."""
        self.length = length

    def rollback(self, length: int) -> None:
        """Forget the rows from `length` on; O(1)."""
        self.length = _checked(length, self.length)

    @property
    def nbytes(self) -> int:
        """Bytes held by keys and values, whatever the length."""
        return sum(value.tensor_size_in_bytes() for value in self._values.values())


class GrowingCache:
    """Past and present are separate tensors (the portable dialect): a pass concatenates, rollback slices."""

    def __init__(self, signature: Signature, capacity: int, memory: str) -> None:
        self.length, self.capacity, self._memory = 0, capacity, memory
        empty = np.zeros((1, signature.cache_heads, 0, signature.cache_width), signature.cache_type)
        self._names = signature.caches
        self._values = dict.fromkeys(self._names, ort.OrtValue.ortvalue_from_numpy(empty, memory, 0))

    def bind(self, binding: Any) -> None:
        """Bind the current rows as past and let ONNX Runtime allocate present."""
        for name, value in self._values.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", self._cut(value))
            binding.bind_output(f"present.{name}", self._memory)

    def advance(self, binding: Any, length: int) -> None:
        """Keep what the pass concatenated; rows behind `length` go at the next pass."""
        self._values = dict(zip(self._names, binding.get_outputs()[-len(self._names) :], strict=True))
        self.length = length

    def rollback(self, length: int) -> None:
        """Forget the rows from `length` on; they are sliced off at the next pass."""
        self.length = _checked(length, self.length)

    @property
    def nbytes(self) -> int:
        """Bytes held by keys and values now."""
        return sum(value.tensor_size_in_bytes() for value in self._values.values())

    def _cut(self, value: Any) -> Any:
        if value.shape()[2] == self.length:
            return value
        kept = np.ascontiguousarray(value.numpy()[:, :, : self.length])
        return ort.OrtValue.ortvalue_from_numpy(kept, self._memory, 0)
