"""Models of one GroupQueryAttention node, and what it computes, in float64."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
KINDS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16}
POSITIONS = 1024


@dataclass(frozen=True)
class Attention:
    """Attention of `kv_heads * group` heads of `size` numbers, the first `2 * rotation` of them rotated."""

    kv_heads: int = 2
    group: int = 3
    size: int = 32
    rotation: int = 16
    interleaved: bool = False
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    packed: bool = True
    half: bool = False
    half_cache: bool = False
    seed: int = 0

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def kind(self) -> np.dtype[Any]:
        return np.dtype(np.float16 if self.half else np.float32)

    @property
    def cache_kind(self) -> np.dtype[Any]:
        return np.dtype(np.float16 if self.half or self.half_cache else np.float32)

    def tables(self) -> dict[str, Array]:
        """Cosines and sines [positions, rotation], and a sink for each head."""
        angles = np.random.default_rng(self.seed).uniform(-3, 3, (POSITIONS, self.rotation))
        sinks = np.linspace(-1, 2, self.heads)
        return {
            name: values.astype(self.kind)
            for name, values in (("cos", np.cos(angles)), ("sin", np.sin(angles)), ("sinks", sinks))
        }

    def rows(self, count: int, seed: int = 1) -> list[Array]:
        """Queries, keys and values of a text: [count, heads * size], twice [count, kv_heads * size]."""
        rng = np.random.default_rng(seed)
        widths = (self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size)
        return [rng.standard_normal((count, width)).astype(self.kind) for width in widths]

    def expected(self, rows: Sequence[Array]) -> Array:
        """The results of all rows of a text from its start, float64 [count, heads * size]."""
        count = len(rows[0])
        # As in the kernel, so that a cache of halves rounds the same numbers.
        tables = {name: table.astype(np.float32) for name, table in self.tables().items()}
        queries, keys = (self._rotated(self._heads(part), tables).astype(np.float64) for part in rows[:2])
        values = self._heads(rows[2])
        keys, values = (part.astype(self.cache_kind).astype(np.float64) for part in (keys, values))
        results = np.empty((count, self.heads, self.size))
        for head in range(self.heads):
            scores = queries[:, head] @ keys[:, head // self.group].T / np.sqrt(self.size)
            if self.softcap:
                scores = self.softcap * np.tanh(scores / self.softcap)
            distance = np.arange(count)[:, None] - np.arange(count)
            hidden = (distance < 0) | ((distance >= self.window) if self.window else False)
            weights = np.exp(np.where(hidden, -np.inf, scores))
            total = weights.sum(axis=1) + (np.exp(np.float64(tables["sinks"][head])) if self.sinks else 0)
            results[:, head] = weights @ values[:, head // self.group] / total[:, None]
        return results.reshape(count, -1)

    def _heads(self, rows: Array) -> Array:
        return rows.astype(np.float32).reshape(len(rows), -1, self.size)

    def _rotated(self, heads: Array, tables: dict[str, Array]) -> Array:
        turned, half = heads.copy(), self.rotation
        if self.interleaved:
            first, second = np.s_[..., 0 : 2 * half : 2], np.s_[..., 1 : 2 * half : 2]
        else:
            first, second = np.s_[..., :half], np.s_[..., half : 2 * half]
        cosine, sine = (tables[name][: len(heads), None] for name in ("cos", "sin"))
        turned[first] = heads[first] * cosine - heads[second] * sine
        turned[second] = heads[second] * cosine + heads[first] * sine
        return turned

    def model(self, extra: Sequence[str] = (), stated: bool = True, **more: Any) -> bytes:
        """The model as bytes; `extra` are names of further inputs of the node, from the 10th on.

        Unless the size of a head is `stated`, the cache has a name on its last axis, as GenAI's builder writes it.
        """
        own, cache = KINDS[self.kind], KINDS[self.cache_kind]
        past, present = (
            [1, self.kv_heads, length, self.size if stated else "width"] for length in ("past", "present")
        )
        inputs = [
            helper.make_tensor_value_info("query", own, [1, "rows", "width"]),
            *(
                helper.make_tensor_value_info(name, own, [1, "rows", "kv_width"])
                for name in ("key", "value")
                if not self.packed
            ),
            *(helper.make_tensor_value_info(f"past_{name}", cache, past) for name in ("key", "value")),
            helper.make_tensor_value_info("last", TensorProto.INT32, [1]),
            helper.make_tensor_value_info("total", TensorProto.INT32, []),
        ]
        parts = ["", ""] if self.packed else ["key", "value"]
        names = ["query", *parts, "past_key", "past_value", "last", "total", "cos", "sin"]
        tables = self.tables()
        if self.sinks or extra:
            names += [*extra, *[""] * (2 - len(extra)), "sinks" if self.sinks else ""]
        attributes: dict[str, Any] = {
            "num_heads": self.heads,
            "kv_num_heads": self.kv_heads,
            "do_rotary": 1,
            "rotary_interleaved": int(self.interleaved),
        }
        attributes |= {"local_window_size": self.window} if self.window else {}
        attributes |= {"softcap": self.softcap} if self.softcap else {}
        outputs = ["result", "present_key", "present_value", *(["products"] if "qk_output" in more else [])]
        node = helper.make_node(
            "GroupQueryAttention", names, outputs, domain="com.microsoft", **(attributes | more)
        )
        constants = [numpy_helper.from_array(tables[name], name) for name in tables if name in names]
        constants += [
            numpy_helper.from_array(np.zeros((1, 1, 1, 1), self.kind), name)
            for name in extra
            if name == "bias"
        ]
        made = [
            helper.make_tensor_value_info("result", own, [1, "rows", "out_width"]),
            *(helper.make_tensor_value_info(f"present_{name}", cache, present) for name in ("key", "value")),
        ]
        if "qk_output" in more:
            made.append(helper.make_tensor_value_info("products", own, [1, self.heads, "rows", "total"]))
        graph = helper.make_graph([node], "attention", inputs, made, constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


class Text:
    """One text's cache in a session: passes append to it."""

    def __init__(
        self, session: Any, attention: Attention, capacity: int = 800, *, shared: bool = True
    ) -> None:
        self.session, self.attention, self.shared, self.length = session, attention, shared, 0
        shape = (1, attention.kv_heads, capacity if shared else 0, attention.size)
        # What lies after the text is never read: not even a NaN there may matter.
        self.cache = [np.full(shape, np.nan, attention.cache_kind) for _ in range(2)]

    def read(self, rows: Sequence[Array]) -> Array:
        """The results of a pass over rows: [count, heads * size]."""
        total = self.length + len(rows[0])
        feed = {"last": np.array([total - 1], np.int32), "total": np.array(total, np.int32)}
        if self.attention.packed:
            feed["query"] = np.concatenate(rows, axis=1)[None]
        else:
            feed |= {name: part[None] for name, part in zip(("query", "key", "value"), rows, strict=True)}
        values = [ort.OrtValue.ortvalue_from_numpy(part) for part in self.cache]
        io = self.session.io_binding()
        for name, array in feed.items():
            io.bind_cpu_input(name, array)
        io.bind_output("result")
        for name, value in zip(("key", "value"), values, strict=True):
            io.bind_ortvalue_input(f"past_{name}", value)
            if self.shared:
                io.bind_ortvalue_output(f"present_{name}", value)
            else:
                io.bind_output(f"present_{name}")
        self.session.run_with_iobinding(io)
        result, *cache = (value.numpy() for value in io.get_outputs())
        self.cache = self.cache if self.shared else [np.array(part) for part in cache]
        self.length = total
        return np.array(result[0])


def cut(rows: Sequence[Array], first: int, end: int) -> list[Array]:
    """Rows [first, end) of queries, keys and values."""
    return [part[first:end] for part in rows]
