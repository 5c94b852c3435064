"""Inputs, outputs and tables of a decoder's .onnx file, read and changed without the `onnx` package or any weight."""

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.protobuf import Message, last_text, read_message, read_numbers, read_text

Axis = int | str | None
"""A size, the name of a size that is only known at run time, or None if that has no name."""

PAST, PRESENT = "past_key_values.", "present."
_LOOKUPS = ("Gather", "GatherBlockQuantized")
# By onnx's TensorProto.DataType: FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, BOOL, FLOAT16, DOUBLE, UINT32, UINT64, BFLOAT16,
# the four FLOAT8, UINT4, INT4.
_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 16: 16}
_BITS |= {17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4}
_FLOAT_TYPE, _HALF_TYPE = b"\x08\x01", b"\x08\x0a"
"""The first field of a tensor's type, elem_type: FLOAT and FLOAT16."""
_LARGEST_GRAPH = 64 << 20


@dataclass(frozen=True, slots=True)
class Value:
    """A graph's input or output."""

    bits: int
    shape: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class GraphFile:
    """Inputs, outputs, and the size of the tables in which rows are only looked up.

    `tables` is the bytes of those in external data: they stay in their file, and only the rows in use are read.
    """

    inputs: dict[str, Value]
    outputs: dict[str, Value]
    tables: int

    @property
    def caches(self) -> dict[str, Value]:
        """The inputs that take past keys and values."""
        return {name: value for name, value in self.inputs.items() if name.startswith(PAST)}


def read_graph(file: Path) -> GraphFile:
    """Read `file`. Raises SpecdecError if it is not an ONNX graph."""
    try:
        with file.open("rb") as stream:
            content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        found = _graph_of(memoryview(content))
    except (OSError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise SpecdecError(f"{file} is not an ONNX graph", str(error), "download the model again") from error
    if not found.inputs:
        raise SpecdecError(f"{file} is not an ONNX graph", "it has no inputs", "download the model again")
    return found


def read_small_graph(file: Path) -> bytes | None:
    """The content of `file`; None if it has the weights inside, which would be read twice."""
    return file.read_bytes() if file.stat().st_size <= _LARGEST_GRAPH else None


def with_half_cache(file: Path) -> bytes | None:
    """The graph in `file` with float16 in place of float32 for past and present keys and values.

    None if they are something else or not GroupQueryAttention's, or if the file has the weights inside, which would be
    read twice.
    """
    content = bytearray(read_small_graph(file) or b"")
    if b"GroupQueryAttention" not in content:
        return None
    graph = read_message(next(iter(read_message(memoryview(content))[7])))
    caches = [value for value in (*graph[11], *graph[12]) if _value(value)[0].startswith((PAST, PRESENT))]
    tensors = [
        tensor for value in caches for kind in read_message(value)[2] for tensor in read_message(kind)[1]
    ]
    for tensor in tensors:
        if bytes(tensor[:2]) != _FLOAT_TYPE:
            return None
        tensor[:2] = _HALF_TYPE
    return bytes(content) if tensors else None


def cache_axes(name: str, shapes: Sequence[Sequence[Axis]], config: Mapping[str, Any]) -> tuple[int, int]:
    """Heads and width of the cache called `name`: from its `shapes` (past, present), else from the model's config.

    ONNX Runtime GenAI's builder has the width only in the config. Raises SpecdecError if neither has one.
    """
    heads = [config.get("num_key_value_heads"), config.get("num_attention_heads")]
    whole, parts = config.get("hidden_size"), config.get("num_attention_heads")
    widths = [config.get("head_dim")]
    if isinstance(whole, int) and isinstance(parts, int) and parts > 0:
        widths.append(whole // parts)
    return _axis(name, "heads", 1, shapes, heads), _axis(name, "width", 3, shapes, widths)


def _axis(name: str, what: str, place: int, shapes: Sequence[Sequence[Axis]], said: Sequence[Any]) -> int:
    candidates = [*(shape[place] for shape in shapes if len(shape) == 4), *said]
    size = next((each for each in candidates if _is_size(each)), None)
    if size is None:
        key = {"heads": "num_key_value_heads", "width": "head_size"}[what]
        raise SpecdecError(
            f"the {what} of the model's cache {'are' if what == 'heads' else 'is'} unknown",
            f"{name} has the shape {list(shapes[0])}, and neither config.json nor genai_config.json gives it",
            f"put {key} into genai_config.json (model.decoder), or export the model again",
        )
    return int(size)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _graph_of(data: memoryview) -> GraphFile:
    graph = read_message(next(iter(read_message(data)[7]), b""))
    stored = dict(map(_external, graph[5]))
    looked_up, other_uses = set[str](), set[str]()
    for node in graph[1]:
        _note_uses(read_message(node), looked_up, other_uses)
    tables = sum(stored.get(name, 0) for name in looked_up - other_uses)
    return GraphFile(dict(map(_value, graph[11])), dict(map(_value, graph[12])), tables)


def _note_uses(node: Message, looked_up: set[str], other_uses: set[str]) -> None:
    """Sort the names that a node and its inner graphs read: `looked_up` if only rows of it are, else `other_uses`."""
    for attribute in map(read_message, node[5]):
        for graph in (*attribute[6], *attribute[11]):  # a graph, or one of several, as If and Loop have
            for inner in read_message(graph)[1]:
                _note_uses(read_message(inner), looked_up, other_uses)
    inputs = list(map(read_text, node[1]))
    if last_text(node[4]) in _LOOKUPS:
        looked_up.update(inputs[:1])
        inputs = inputs[1:]
    other_uses.update(inputs)


def _external(data: memoryview) -> tuple[str, int]:
    """A stored tensor's name, and its size in bytes if it is in external data, else 0."""
    tensor = read_message(data)
    pairs = map(read_message, tensor[13])
    entries = {last_text(pair[1]): last_text(pair[2]) for pair in pairs}
    size = 0
    if "location" in entries:
        shape = [number for value in tensor[1] for number in read_numbers(value)]
        size = int(entries.get("length") or prod(shape) * _bits(tensor[2]) // 8)
    return last_text(tensor[8]), size


def _value(data: memoryview) -> tuple[str, Value]:
    info = read_message(data)
    bits, shape = 0, list[Axis]()
    for tensor in (read_message(each) for kind in info[2] for each in read_message(kind)[1]):
        bits = _bits(tensor[1])
        shape = [_axis_of(axis) for found in tensor[2] for axis in read_message(found)[1]]
    return last_text(info[1]), Value(bits, tuple(shape))


def _axis_of(data: memoryview) -> Axis:
    axis = read_message(data)
    return int(axis[1][-1]) if axis[1] else read_text(axis[2][-1]) if axis[2] else None


def _bits(kinds: Sequence[int]) -> int:
    return _BITS.get(kinds[-1], 0) if kinds else 0
