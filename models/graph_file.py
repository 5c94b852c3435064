"""Inputs, outputs and tables of a decoder's .onnx file, read and changed without the `onnx` package or any weight."""

import mmap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError

Axis = int | str | None
"""A size, the name of a size that is only known at run time, or None if that has no name."""

Message = defaultdict[int, list[Any]]

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


def with_half_cache(file: Path) -> bytes | None:
    """The graph in `file` with float16 in place of float32 for past and present keys and values.

    None if they are something else or not GroupQueryAttention's, or if the file has the weights inside, which would be
    read twice.
    """
    if file.stat().st_size > _LARGEST_GRAPH:
        return None
    content = bytearray(file.read_bytes())
    if b"GroupQueryAttention" not in content:
        return None
    graph = _message(next(iter(_message(memoryview(content))[7])))
    caches = [value for value in (*graph[11], *graph[12]) if _value(value)[0].startswith((PAST, PRESENT))]
    tensors = [tensor for value in caches for kind in _message(value)[2] for tensor in _message(kind)[1]]
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
    graph = _message(next(iter(_message(data)[7]), b""))
    stored = dict(map(_external, graph[5]))
    looked_up, other_uses = set[str](), set[str]()
    for node in graph[1]:
        _note_uses(_message(node), looked_up, other_uses)
    tables = sum(stored.get(name, 0) for name in looked_up - other_uses)
    return GraphFile(dict(map(_value, graph[11])), dict(map(_value, graph[12])), tables)


def _note_uses(node: Message, looked_up: set[str], other_uses: set[str]) -> None:
    """Sort the names that a node and its inner graphs read: `looked_up` if only rows of it are, else `other_uses`."""
    for attribute in map(_message, node[5]):
        for graph in (*attribute[6], *attribute[11]):  # a graph, or one of several, as If and Loop have
            for inner in _message(graph)[1]:
                _note_uses(_message(inner), looked_up, other_uses)
    inputs = list(map(_text, node[1]))
    if _last_text(node[4]) in _LOOKUPS:
        looked_up.update(inputs[:1])
        inputs = inputs[1:]
    other_uses.update(inputs)


def _external(data: memoryview) -> tuple[str, int]:
    """A stored tensor's name, and its size in bytes if it is in external data, else 0."""
    tensor = _message(data)
    pairs = map(_message, tensor[13])
    entries = {_last_text(pair[1]): _last_text(pair[2]) for pair in pairs}
    size = 0
    if "location" in entries:
        shape = [number for value in tensor[1] for number in _numbers(value)]
        size = int(entries.get("length") or prod(shape) * _bits(tensor[2]) // 8)
    return _last_text(tensor[8]), size


def _value(data: memoryview) -> tuple[str, Value]:
    info = _message(data)
    bits, shape = 0, list[Axis]()
    for tensor in (_message(each) for kind in info[2] for each in _message(kind)[1]):
        bits = _bits(tensor[1])
        shape = [_axis_of(axis) for found in tensor[2] for axis in _message(found)[1]]
    return _last_text(info[1]), Value(bits, tuple(shape))


def _axis_of(data: memoryview) -> Axis:
    axis = _message(data)
    return int(axis[1][-1]) if axis[1] else _text(axis[2][-1]) if axis[2] else None


def _bits(kinds: Sequence[int]) -> int:
    return _BITS.get(kinds[-1], 0) if kinds else 0


def _numbers(value: Any) -> Iterator[int]:
    """The values of a repeated number field, packed or not."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def _text(value: Any) -> str:
    return bytes(value).decode()


def _last_text(values: Sequence[Any]) -> str:
    return _text(values[-1]) if values else ""


def _message(data: Any) -> Message:
    """A protocol buffer's fields by their number: each value is an int, or the bytes."""
    fields: Message = defaultdict(list)
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            fields[number].append(value)
            continue
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, at = _varint(data, at)
        elif not size:
            raise ValueError(f"a field of unknown kind {wire}")
        if at + size > end:
            raise ValueError("it ends too early")
        fields[number].append(data[at : at + size])
        at += size
    return fields


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
