"""Protocol buffers, the format of .onnx files: fields read and written without knowing their schema."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

Message = defaultdict[int, list[Any]]
"""A message's fields by their number: each value is an int, or the bytes."""


def read_message(data: Any) -> Message:
    """Read a message from bytes or a memoryview. Raises ValueError or IndexError if it is none."""
    fields: Message = defaultdict(list)
    for number, value, _ in read_fields(data):
        fields[number].append(value)
    return fields


def read_fields(data: Any) -> Iterator[tuple[int, Any, Any]]:
    """The fields of a message in order: number, value, and all of the field's bytes."""
    at, end = 0, len(data)
    while at < end:
        start = at
        key, at = _read_varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _read_varint(data, at)
            yield number, value, data[start:at]
            continue
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, at = _read_varint(data, at)
        elif not size:
            raise ValueError(f"a field of unknown kind {wire}")
        if at + size > end:
            raise ValueError("it ends too early")
        yield number, data[at : at + size], data[start : at + size]
        at += size


def read_numbers(value: Any) -> Iterator[int]:
    """The values of a repeated number field, packed or not."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _read_varint(value, at)
        yield number


def read_text(value: Any) -> str:
    """The text in a field."""
    return bytes(value).decode()


def last_text(values: Sequence[Any]) -> str:
    """The text of a field that may be absent, then empty; of several, the last counts."""
    return read_text(values[-1]) if values else ""


def write_field(number: int, value: int | bytes) -> bytes:
    """A field's bytes."""
    if isinstance(value, int):
        return _write_varint(number << 3) + _write_varint(value)
    return _write_varint(number << 3 | 2) + _write_varint(len(value)) + value


def _read_varint(data: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _write_varint(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
