"""The KV cache of one session: rows of past keys and values, of which the first `length` are valid."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.model.signature import Signature

Allocate = Callable[[Sequence[int], type[np.generic]], Any]
"""Makes an OrtValue of zeros with a shape and type, in the memory where the session computes."""


class Cache:
    """Rows [0, length) are valid; the rows after them are overwritten by the next pass."""

    def __init__(self, capacity: int) -> None:
        self.length, self.capacity = 0, capacity
        self._values: dict[str, Any] = {}

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

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values take now."""
        return sum(value.tensor_size_in_bytes() for value in self._values.values())


class SharedCache(Cache):
    """One buffer of full capacity, bound to past and present: passes write in place."""

    def __init__(self, signature: Signature, capacity: int, allocate: Allocate) -> None:
        super().__init__(capacity)
        shape = (1, signature.cache_heads, capacity, signature.cache_width)
        self._values = {name: allocate(shape, signature.cache_type) for name in signature.caches}

    def bind(self, binding: Any) -> None:
        """Bind once: the addresses never change."""
        for name, value in self._values.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)


class GrowingCache(Cache):
    """Past and present are separate tensors (the portable dialect): a pass concatenates, the next one slices."""

    def __init__(self, signature: Signature, capacity: int, memory: str) -> None:
        super().__init__(capacity)
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

    def _cut(self, value: Any) -> Any:
        if value.shape()[2] == self.length:
            return value
        kept = np.ascontiguousarray(value.numpy()[:, :, : self.length])
        return ort.OrtValue.ortvalue_from_numpy(kept, self._memory, 0)


def make_cache(signature: Signature, capacity: int, allocate: Allocate, memory: str = "cpu") -> Cache:
    """The kind of cache that the graph's attention requires; `memory` names where one that grows is kept."""
    if signature.shares_buffer:
        return SharedCache(signature, capacity, allocate)
    return GrowingCache(signature, capacity, memory)
