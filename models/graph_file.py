"""Inputs, outputs and tables of a decoder's .onnx file, read without the `onnx` package or any weight."""

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError

Axis = int | str | None
"""A size, the name of a size that is only known at run time, or None if that has no name."""

PAST = "past_key_values."
_LOOKUPS = ("Gather", "GatherBlockQuantized")
# By onnx's TensorProto.DataType: FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, BOOL, FLOAT16, DOUBLE, UINT32, UINT64, BFLOAT16,
# the four FLOAT8, UINT4, INT4.
_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 16: 16}
_BITS |= {17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4}


@dataclass(frozen=True, slots=True)
class Value:
    """A graph's input or output."""

    bits: int
    shape: tuple[Axis, ...]


@dataclass(slots=True)
class GraphFile:
    """Inputs, outputs, and the size of the tables in which rows are only looked up.

    `tables` is the bytes of those in external data: they stay in their file, and only the rows in use are read.
    """

    inputs: dict[str, Value] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)
    tables: int = 0

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
    graph = next((value for number, value in _fields(data) if number == 7), memoryview(b""))
    found, stored, other_uses = GraphFile(), dict[str, int](), set[str]()
    looked_up = set[str]()
    for number, value in _fields(graph):
        if number == 1:
            _note_uses(value, looked_up, other_uses)
        elif number == 5:
            name, size = _external(value)
            stored[name] = size
        elif number in (11, 12):
            name, described = _value(value)
            (found.inputs if number == 11 else found.outputs)[name] = described
    found.tables = sum(stored.get(name, 0) for name in looked_up - other_uses)
    return found


def _note_uses(node: memoryview, looked_up: set[str], other_uses: set[str]) -> None:
    """Sort the names that a node and its inner graphs read: `looked_up` if only rows of it are, else `other_uses`."""
    inputs: list[str] = []
    operator = ""
    for number, value in _fields(node):
        if number == 1:
            inputs.append(_text(value))
        elif number == 4:
            operator = _text(value)
        elif number == 5:
            for part, inner in _fields(value):
                if part in (6, 11):  # a graph, or one of several, as If and Loop have
                    for kind, step in _fields(inner):
                        if kind == 1:
                            _note_uses(step, looked_up, other_uses)
    if operator in _LOOKUPS:
        looked_up.update(inputs[:1])
        inputs = inputs[1:]
    other_uses.update(inputs)


def _external(tensor: memoryview) -> tuple[str, int]:
    """A stored tensor's name, and its size in bytes if it is in external data, else 0."""
    name, shape, kind, entries = "", list[int](), 0, dict[str, str]()
    for number, value in _fields(tensor):
        if number == 1:
            shape += _numbers(value)
        elif number == 2:
            kind = value
        elif number == 8:
            name = _text(value)
        elif number == 13:
            pair = {part: _text(text) for part, text in _fields(value)}
            entries[pair.get(1, "")] = pair.get(2, "")
    if "location" not in entries:
        return name, 0
    return name, int(entries.get("length") or prod(shape) * _BITS.get(kind, 0) // 8)


def _value(info: memoryview) -> tuple[str, Value]:
    name, bits, shape = "", 0, list[Axis]()
    for number, value in _fields(info):
        if number == 1:
            name = _text(value)
        elif number == 2:
            for _, tensor in (each for each in _fields(value) if each[0] == 1):
                for part, found in _fields(tensor):
                    if part == 1:
                        bits = _BITS.get(found, 0)
                    elif part == 2:
                        shape = [_dimension(axis) for kind, axis in _fields(found) if kind == 1]
    return name, Value(bits, tuple(shape))


def _dimension(axis: memoryview) -> Axis:
    for number, value in _fields(axis):
        return int(value) if number == 1 else _text(value)
    return None


def _numbers(value: Any) -> list[int]:
    """The values of a repeated number field, packed or not."""
    if not isinstance(value, memoryview):
        return [int(value)]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def _text(value: Any) -> str:
    return bytes(value).decode()


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and content of a protocol buffer's fields: an int, or the bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, at = _varint(data, at)
        elif not size:
            raise ValueError(f"a field of unknown kind {wire}")
        if at + size > end:
            raise ValueError("it ends too early")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
