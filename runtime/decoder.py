"""One ONNX session with its KV cache: tokens in, rows of logits out."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.cache import make_cache
from specdec_onnx.runtime.device import Device, session_options
from specdec_onnx.runtime.signature import Signature, read_signature

ATTENTION_TILE = 32
"""ONNX Runtime's attention works through the rows of a pass in tiles, and a tile with a single row takes another
kernel whose last bits differ. Tiles hold a multiple of this many rows (2 * head_dim, or fewer to fit the L2 cache).
A pass that never leaves one row alone gives the same logits however a text is cut into passes."""

SPARE_ROWS = 2
"""Cache rows that padding may touch behind the last token."""

_KEPT_BINDINGS = 48


class Cancelled(Exception):
    """A pass was stopped by `Decoder.terminate`."""


@dataclass(slots=True)
class _Binding:
    """The arrays and bindings of one pass width; filled in place before each run."""

    io: Any
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    logits: NDArray[np.float32]
    alive: list[Any]


class Decoder:
    """A decoder model on one device; not thread-safe, except for `terminate`."""

    def __init__(self, session: Any, signature: Signature, capacity: int, exact: bool) -> None:
        self.session, self.signature, self.exact = session, signature, exact
        self.vocab_size = signature.columns
        self.cache = make_cache(signature, capacity)
        self._options = ort.RunOptions()
        self._options.add_run_config_entry("gpu_graph_id", "-1")  # unset, each run would look for it in vain: 0.1 ms
        self._ones = np.ones((1, capacity), np.int64)
        self._bindings: OrderedDict[tuple[int, int], _Binding] = OrderedDict()
        self._logits = np.empty(0, signature.logits_type)

    @classmethod
    def open(
        cls,
        model: ModelFolder,
        *,
        device: Device | None = None,
        capacity: int,
        exact: bool = False,
        threads: int = 0,
    ) -> "Decoder":
        """Load a model folder's graph with room for `capacity` rows; `threads` 0 means the physical cores.

        An `exact` decoder pads passes with a dummy row where one row would be alone in its attention tile.

        Raises SpecdecError when ONNX Runtime cannot load the graph or the graph cannot verify drafts.
        """
        options = session_options(threads)
        try:
            session = (device or Device()).session(str(model.graph), options)
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise SpecdecError(f"cannot load {model.graph}", reason, "export the model again") from error
        signature = read_signature(session, model.graph, model.vocab_size)
        return cls(session, signature, capacity, exact)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.cache.length

    @property
    def capacity(self) -> int:
        """Tokens that fit in the cache, a dummy row included."""
        return self.cache.capacity

    def placement(self) -> dict[str, int]:
        """How many graph nodes each execution provider took; what a device lacks runs on the CPU in silence."""
        counts: Counter[str] = Counter()
        for part in self.session.get_provider_graph_assignment_info():
            counts[part.ep_name] += len(part.get_nodes())
        return dict(counts.most_common())

    def forward(self, tokens: Sequence[int], *, keep: int = 0) -> NDArray[np.float32]:
        """Append `tokens` (1 or more) and return their logits, [len(tokens), vocab_size].

        With `keep` above 0 only the last `keep` rows come back (at least one of them valid). The array is a view
        that the next pass overwrites. Raises Cancelled when `terminate` stopped it; the cache is then unchanged.
        """
        count, start = len(tokens), self.cache.length
        padding = int(self.exact and count % ATTENTION_TILE == 1)
        width = count + padding
        rows = (
            min(width, max(keep, 1 + self.exact - padding) + padding)
            if keep and self.signature.keeps_rows
            else width
        )
        binding = self._binding(width, rows)
        binding.ids[0, :count] = tokens
        binding.ids[0, count:] = tokens[-1]
        self._place(binding, start, width)
        self._run(binding)
        self.cache.advance(binding.io, start + count)
        logits = binding.logits[: rows - padding]
        return logits[-keep:] if keep else logits

    def rollback(self, length: int) -> None:
        """Forget every token from position `length` on."""
        self.cache.rollback(length)

    def terminate(self) -> None:
        """Stop the pass in flight and any later one, until `resume`; may be called from any thread."""
        self._options.terminate = True

    def resume(self) -> None:
        """Allow passes again."""
        self._options.terminate = False

    def _run(self, binding: _Binding) -> None:
        try:
            self.session.run_with_iobinding(binding.io, self._options)
        except Exception as error:
            if self._options.terminate:
                raise Cancelled from error
            raise SpecdecError("the model failed in a forward pass", str(error).splitlines()[0]) from error

    def _place(self, binding: _Binding, start: int, width: int) -> None:
        total = start + width
        if total > self.capacity:
            raise SpecdecError(
                f"the context is full: {total} tokens, room for {self.capacity}",
                fix="shorten the prompt or open the model with a larger context",
            )
        if "attention_mask" in self.signature.inputs:
            mask = ort.OrtValue.ortvalue_from_numpy(self._ones[:, :total])
            binding.io.bind_ortvalue_input("attention_mask", mask)
        if "position_ids" in self.signature.inputs:
            binding.positions[0] = np.arange(start, total)
        if not self.signature.shares_buffer:
            self._bind_outputs(binding)

    def _binding(self, width: int, rows: int) -> _Binding:
        key = (width, rows)
        if key not in self._bindings:
            self._bindings[key] = self._bind(width, rows)
            if len(self._bindings) > _KEPT_BINDINGS:
                self._bindings.popitem(last=False)
        self._bindings.move_to_end(key)
        return self._bindings[key]

    def _bind(self, width: int, rows: int) -> _Binding:
        io = self.session.io_binding()
        ids, positions = np.zeros((1, width), np.int64), np.zeros((1, width), np.int64)
        given = {"input_ids": ids, "position_ids": positions}
        if self.signature.keeps_rows:
            given["num_logits_to_keep"] = np.array(0 if rows == width else rows, np.int64)
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in given.items()}
        for name in values.keys() & self.signature.inputs:
            io.bind_ortvalue_input(name, values[name])
        logits = self._rows(rows)
        values["logits"] = ort.OrtValue.ortvalue_from_numpy(logits[None])
        binding = _Binding(io, ids, positions, logits, [values, given])
        self._bind_outputs(binding)
        return binding

    def _bind_outputs(self, binding: _Binding) -> None:
        binding.io.clear_binding_outputs()
        binding.io.bind_ortvalue_output(self.signature.logits, binding.alive[0]["logits"])
        self.cache.bind(binding.io)

    def _rows(self, rows: int) -> NDArray[np.float32]:
        """The first `rows` rows of the one logits buffer; a larger buffer retires the bindings to the old one."""
        size = rows * self.vocab_size
        if self._logits.size < size:
            self._logits = np.empty(size, self.signature.logits_type)
            self._bindings.clear()
        return self._logits[:size].reshape(rows, self.vocab_size)
