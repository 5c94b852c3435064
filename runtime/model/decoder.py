"""One ONNX session with its KV cache: tokens in, rows of logits out."""

import atexit
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition, current_thread
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError, exhausted
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.kernels import Kernels
from specdec_onnx.runtime.model.cache import make_cache
from specdec_onnx.runtime.model.device import PROVIDERS, Device
from specdec_onnx.runtime.model.prefix_files import PrefixFiles
from specdec_onnx.runtime.model.prefixes import Prefixes, Rows, common_prefix
from specdec_onnx.runtime.model.signature import Signature, read_signature

ATTENTION_TILE = 32
"""ONNX Runtime's CPU attention processes the rows of a pass in tiles, and a tile with a single row runs another kernel,
whose last bits differ. Tiles hold a multiple of this many rows (2 * head_dim, or fewer to fit the L2 cache). If no
pass leaves one row alone, the logits are the same however a text is split into passes."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Widths are a multiple of `multiple`, and no tile of `tile` rows holds a single row (0: no tiles)."""

    multiple: int = 1
    tile: int = 0

    def width(self, count: int) -> int:
        """Rows of a pass over `count` tokens; those after the tokens are dummies."""
        width = -(-count // self.multiple) * self.multiple
        return width + 1 if self.tile and width % self.tile == 1 else width


NO_PADDING = Padding()
PAIRS = Padding(tile=ATTENTION_TILE)
EVEN = Padding(multiple=2)
EIGHTS = Padding(multiple=8)

PADDINGS = (NO_PADDING, PAIRS, EVEN, EIGHTS)
"""Cheapest first; the self-test chooses the first with which a device's passes agree."""

SPARE_ROWS = 8
"""Cache rows after the last token that padding may write."""

UNLIMITED = 1 << 30
"""The widest pass of a device in which the self-test found no fault."""

_KEPT_BINDINGS = 48
_SMALL_INPUTS = {"input_ids", "position_ids", "num_logits_to_keep"}

CHUNK = 128
"""Tokens of a prefill pass: enough for full matmul speed, few enough for smooth progress."""


class Cancelled(Exception):
    """A pass was stopped by `Decoder.terminate`."""


_LEAVE = 20.0
"""Seconds that the end of a program waits for ONNX Runtime; stopping a pass takes milliseconds, loading may take long."""


class _Native:
    """What daemon threads run inside ONNX Runtime.

    Python ends a daemon thread where it comes back from native code, and when that is C++, the whole process aborts.
    So the end of a program first stops the passes, waits until all have come back, and lets no other begin.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._running: list[ort.RunOptions | None] = []
        self._over = False

    @contextmanager
    def run(self, options: ort.RunOptions | None = None) -> Iterator[None]:
        """Surrounds native code, which `options` can stop. Raises Cancelled when the program ends."""
        if not current_thread().daemon:
            yield
            return
        with self._changed:
            if self._over:
                raise Cancelled
            self._running.append(options)
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(options)
                self._changed.notify_all()

    def end(self) -> None:
        """Stop what is running and wait for it."""
        with self._changed:
            self._over = True
            for options in self._running:
                if options is not None:
                    options.terminate = True
            self._changed.wait_for(lambda: not self._running, _LEAVE)


_NATIVE = _Native()
atexit.register(_NATIVE.end)


@dataclass(slots=True)
class _Binding:
    """The arrays and bindings of one pass width; the arrays are filled in place before each run."""

    io: Any
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    logits: NDArray[np.float32]
    alive: list[Any]


class Decoder:
    """A decoder model on one device; not thread-safe, except for `terminate`.

    Attributes:
        padding: How passes are widened.
        widest: The most rows that a pass may have; longer ones run in pieces.
        kernels: What multiplies with 4- and 8-bit weights.
        exact: Whether passes must agree bit for bit, as a target's do.
    """

    def __init__(
        self, session: Any, signature: Signature, capacity: int, exact: bool, device: Device | None = None
    ) -> None:
        self.session, self.signature, self.exact = session, signature, exact
        self.device = device or Device()
        self.kernels = Kernels()
        self.padding, self.widest = PAIRS if exact else NO_PADDING, UNLIMITED
        self.vocab_size = signature.columns
        self.cache = make_cache(signature, capacity, partial(self.device.tensor, session), self.device.memory)
        self._options = ort.RunOptions()
        # If it is not set, each run searches for it: 0.1 ms.
        self._options.add_run_config_entry("gpu_graph_id", "-1")
        self._ones = np.ones((1, capacity), np.int64)
        self._bindings: OrderedDict[tuple[int, int], _Binding] = OrderedDict()
        self._bound = 0
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
        half_cache: bool = True,
    ) -> "Decoder":
        """Load a model folder's graph with room for `capacity` rows; `threads` 0 means the physical cores.

        Keys and values are kept in float16 where our kernels compute attention, unless `half_cache` is False.

        An `exact` decoder adds a dummy row where a row would be alone in its attention tile, until the self-test finds
        what this device requires. Raises SpecdecError if ONNX Runtime cannot load the graph, or the graph cannot verify
        drafts.
        """
        device = device or Device()
        try:
            with _NATIVE.run():
                session, kernels = device.open(model.graph, threads, half_cache=half_cache)
        except (SpecdecError, Cancelled):
            raise
        except Exception as error:
            reason = str(error).splitlines()[0]
            wrong = SpecdecError(f"cannot load {model.graph}", reason, "export the model again")
            raise exhausted(error) or wrong from error
        signature = read_signature(session, model.graph, model.vocab_size, model.config)
        _check_attention(signature, device)
        decoder = cls(session, signature, capacity, exact, device)
        decoder.kernels = kernels
        if kernels.has_attention and signature.shares_buffer:
            decoder.padding = NO_PADDING
        return decoder

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.cache.length

    @property
    def capacity(self) -> int:
        """Rows that fit in the cache, dummies included."""
        return self.cache.capacity

    def placement(self) -> dict[str, int]:
        """How many graph nodes each execution provider runs; operators that a device lacks silently run on the CPU."""
        return dict(Counter(provider for provider, _ in self._assignments()).most_common())

    def fallbacks(self) -> dict[str, int]:
        """Operators that run on the CPU because the device lacks them, with counts; none for the CPU itself."""
        if self.device.name == "cpu":
            return {}
        on_cpu = (node for provider, node in self._assignments() if provider == PROVIDERS["cpu"])
        return dict(Counter(on_cpu).most_common())

    def _assignments(self) -> Iterator[tuple[str, str]]:
        """Each graph node's execution provider and operator."""
        for part in self.session.get_provider_graph_assignment_info():
            yield from ((part.ep_name, node.op_type) for node in part.get_nodes())

    def forward(self, tokens: Sequence[int], *, keep: int = 0) -> NDArray[np.float32]:
        """Append `tokens` (1 or more) and return their logits, [len(tokens), vocab_size].

        With `keep` above 0, only the last `keep` rows are returned. The array is a view, which the next pass
        overwrites. Raises Cancelled when `terminate` was called; the cache is then unchanged.
        """
        if self._options.terminate:
            raise Cancelled
        count, start = len(tokens), self.cache.length
        width = self.padding.width(count)
        if width > self.widest:
            return self._in_pieces(tokens, keep)
        padding, rows = width - count, width
        if keep and self.signature.keeps_rows:
            rows = min(width, self.padding.width(keep + padding))
        self._make_room(start + width)
        binding = self._binding(width, rows)
        binding.ids[0, :count] = tokens
        binding.ids[0, count:] = tokens[-1]
        self._set_positions(binding, start, width)
        try:
            with _NATIVE.run(self._options):
                self.session.run_with_iobinding(binding.io, self._options)
        except Exception as error:
            if self._options.terminate:
                raise Cancelled from error
            if isinstance(error, Cancelled) or not _is_of_runtime(error):
                raise
            raise SpecdecError("the model failed in a forward pass", str(error).splitlines()[0]) from error
        self.cache.advance(binding.io, start + count)
        logits = binding.logits[: rows - padding]
        return logits[-keep:] if keep else logits

    def _in_pieces(self, tokens: Sequence[int], keep: int) -> NDArray[np.float32]:
        """Several passes instead of one that is too wide; the cache is unchanged when one of them is stopped."""
        start, wanted = self.length, len(tokens) - keep if keep else 0
        rows = []
        try:
            for at in range(0, len(tokens), self.widest):
                piece = tokens[at : at + self.widest]
                kept = min(len(piece), max(1, at + len(piece) - wanted))
                logits = self.forward(piece, keep=kept)
                if at + len(piece) > wanted:
                    rows.append(logits.copy())
        except Cancelled:
            self.rollback(start)
            raise
        return np.concatenate(rows)

    def rollback(self, length: int) -> None:
        """Forget every token from position `length` on."""
        self.cache.rollback(length)

    def close(self) -> None:
        """Free the session and the cache; no pass is possible after that."""
        self._bindings.clear()
        self.cache.clear()
        self.session, self._logits = None, np.empty(0, self.signature.logits_type)

    def terminate(self) -> None:
        """Stop the pass in flight and any later one, until `resume`; may be called from any thread."""
        self._options.terminate = True

    def resume(self) -> None:
        """Allow passes again."""
        self._options.terminate = False

    def _make_room(self, total: int) -> None:
        if total > self.capacity:
            raise SpecdecError(
                f"the context is full: {total} tokens, room for {self.capacity}",
                fix="shorten the prompt or open the model with a larger context",
            )
        try:
            self.cache.reserve(total)
        except Exception as error:
            raise exhausted(error) or error from error

    def _set_positions(self, binding: _Binding, start: int, width: int) -> None:
        total = start + width
        if "attention_mask" in self.signature.inputs:
            mask = ort.OrtValue.ortvalue_from_numpy(self._ones[:, :total])
            binding.io.bind_ortvalue_input("attention_mask", mask)
        if "position_ids" in self.signature.inputs:
            binding.positions[0] = np.arange(start, total)
        if self.device.name != "cpu":
            self._bind_inputs(binding)
        if not self.signature.shares_buffer:
            self._bind_outputs(binding)

    def _binding(self, width: int, rows: int) -> _Binding:
        key = (width, rows)
        if self._bound != self.cache.moves:
            self._bindings.clear()
            self._bound = self.cache.moves
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
        logits = self._rows(rows)
        values["logits"] = ort.OrtValue.ortvalue_from_numpy(logits[None])
        binding = _Binding(io, ids, positions, logits, [values, given])
        self._bind_inputs(binding)
        self._bind_outputs(binding)
        return binding

    def _bind_inputs(self, binding: _Binding) -> None:
        """Bind the small inputs; devices other than the CPU copy them now, so they must be bound before each pass."""
        values = binding.alive[0]
        for name in _SMALL_INPUTS & values.keys() & self.signature.inputs:
            binding.io.bind_ortvalue_input(name, values[name])

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


def _is_of_runtime(error: Exception) -> bool:
    """Whether ONNX Runtime raised it, and not a signal handler that Python ran when the pass was over."""
    return type(error).__module__.startswith("onnxruntime") or type(error) in (RuntimeError, ValueError)


def _check_attention(signature: Signature, device: Device) -> None:
    """Raise SpecdecError for a combination that silently computes wrong logits."""
    if device.name == "dml" and signature.shares_buffer:
        raise SpecdecError(
            "this model cannot run on device 'dml'",
            "DirectML's GroupQueryAttention forgets the past in passes over several tokens, so drafts cannot be checked",
            "use device webgpu, or a model without GroupQueryAttention (as Optimum exports)",
        )


_WORTHWHILE = 32
"""Rows from which on setting aside and putting back pays: a pass over fewer costs hardly more than one over one."""


class Tape:
    """A decoder together with the tokens its cache holds.

    Only the tokens tell which text is in the cache: whoever continues a text compares it with them first. They never
    run ahead of the cache, even if an interrupt comes between the two.

    Attributes:
        prefixes: Where rows go that another text displaces; None if they are lost.
        files: Where texts are kept for later processes; None if they are not.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.tokens: list[int] = []
        self.prefixes: Prefixes | None = None
        self.files: PrefixFiles | None = None

    def keep_prefix(self, tokens: Sequence[int]) -> int:
        """Cut the cache back to the prefix that it shares with `tokens`; returns its length.

        What another text displaces is set aside.
        """
        kept = common_prefix(self.tokens, tokens)
        if self.prefixes is not None and len(self.tokens) - kept >= _WORTHWHILE:
            self.decoder.rollback(len(self.tokens))
            self.prefixes.put(self.tokens, kept, self.decoder.cache)
        self.cut(kept)
        return kept

    def turn_to(self, tokens: Sequence[int]) -> int:
        """`keep_prefix`, and what else of `tokens` was set aside or stored is put back.

        Returns how many of them the cache holds then.
        """
        kept = self.keep_prefix(tokens)
        if self.prefixes is not None and len(tokens) - kept >= _WORTHWHILE:
            for start, shared, rows in self.prefixes.find(tokens, kept):
                self._put_back(tokens[len(self.tokens) : start + shared], start, rows)
        if self.files is not None:
            known = len(self.tokens)
            restored = self.files.restore(tokens, known, self.decoder.cache)
            self.tokens.extend(tokens[known:restored])
        return len(self.tokens)

    def keep_on_disk(self, folder: Path, fingerprint: str) -> None:
        """Let `store` and `turn_to` use files in `folder`; `fingerprint` is what the model's bits depend on."""
        decoder = self.decoder
        if decoder.cache.movable:
            parts = (
                decoder.signature.cache_type.__name__,
                decoder.padding,
                decoder.widest,
                str(decoder.kernels),
            )
            self.files = PrefixFiles(folder, f"{fingerprint} {parts}")

    def store(self, limit: int | None = None, until: Callable[[], bool] = lambda: False) -> None:
        """Keep the text, or its first `limit` tokens, in a file, if there is a place for it; not if `until()` holds."""
        if self.files is not None:
            self.decoder.rollback(len(self.tokens))
            self.files.save(self.tokens[:limit], self.decoder.cache, until)

    def stored_texts(self) -> list[list[int]]:
        """The token ids of the texts that `store` has kept for this model."""
        return self.files.texts() if self.files is not None else []

    def _put_back(self, tokens: Sequence[int], start: int, rows: Rows) -> None:
        """Append `tokens` with their rows, the last of those in a block that begins at row `start`."""
        first = len(self.tokens) - start
        span = slice(first, first + len(tokens))
        self.decoder.cache.extend(len(tokens), lambda name: rows[name][:, :, span])
        self.tokens.extend(tokens)

    def cut(self, length: int) -> None:
        """Forget every token from position `length` on."""
        del self.tokens[length:]
        self.decoder.rollback(len(self.tokens))

    def close(self) -> None:
        """Free all memory, for good."""
        self.forget()
        self.decoder.close()

    def forget(self) -> None:
        """Empty the cache, and forget what was set aside."""
        self.cut(0)
        if self.prefixes is not None:
            self.prefixes.clear()

    def forward(
        self, tokens: Sequence[int], *, keep: int = 0, progress: Callable[[int, int], None] | None = None
    ) -> NDArray[np.float32]:
        """Append `tokens` in passes of at most CHUNK tokens; the last pass's logits, as `Decoder.forward` returns them.

        Calls `progress(done, total)` after each pass; a cancelled pass leaves those before it in place.
        """
        rows = np.empty((0, self.decoder.vocab_size), np.float32)
        self.decoder.rollback(len(self.tokens))
        for start in range(0, len(tokens), CHUNK):
            chunk = tokens[start : start + CHUNK]
            rows = self.decoder.forward(chunk, keep=keep)
            self.tokens.extend(chunk)
            if progress is not None:
                progress(start + len(chunk), len(tokens))
        return rows


def set_aside(tapes: Sequence[Tape], budget: int) -> None:
    """Let tapes keep what other texts displace, in `budget` bytes together; each gets room for as many tokens."""
    tapes = [tape for tape in tapes if tape.decoder.cache.movable]
    sizes = [tape.decoder.cache.row_bytes for tape in tapes]
    for tape, size in zip(tapes, sizes, strict=True):
        tape.prefixes = Prefixes(budget * size // sum(sizes)) if budget else None
