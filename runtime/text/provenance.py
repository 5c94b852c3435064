"""Text that knows which of its characters come from a message, through everything that a chat template does with it."""

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from contextlib import suppress
from typing import Any, Self

from jinja2 import Undefined
from jinja2.utils import Namespace

_MARK = "\U0010fffd"
"""Stands for a message's character when an operation is repeated to see where it puts such characters."""


_OPAQUE = (bytes, bytearray, Namespace)
"""What may hold a message's text without knowing it."""


class Said(str):
    """Text from a message, or partly from one, as `mask` says.

    To templates it is an ordinary string. Concatenation and slicing keep track of each character's origin.
    """

    _mask: bytes

    def __new__(cls, text: str = "", mask: bytes | None = None) -> Self:
        """`mask` has one byte for each character of `text`: 1 if it comes from a message; without it, all do."""
        made = super().__new__(cls, text)
        made._mask = b"\1" * len(made) if mask is None else mask
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: Any) -> "Said":
        found = super().__getitem__(key)
        return Said(found, self._mask[key] if isinstance(key, slice) else bytes([self._mask[key]]))

    def __iter__(self) -> Iterator["Said"]:
        return map(self.__getitem__, range(len(self)))

    def lstrip(self, *chars: Any) -> "Said":
        return self[len(self) - len(super().lstrip(*chars)) :]

    def rstrip(self, *chars: Any) -> "Said":
        return self[: len(super().rstrip(*chars))]

    def strip(self, *chars: Any) -> "Said":
        return self.lstrip(*chars).rstrip(*chars)

    def removeprefix(self, prefix: str, /) -> "Said":
        return self[len(self) - len(super().removeprefix(prefix)) :]

    def removesuffix(self, suffix: str, /) -> "Said":
        return self[: len(super().removesuffix(suffix))]

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        return self._parts(super().split(sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        return self._parts(super().rsplit(sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: Any = False) -> list[str]:
        return self._parts(super().splitlines(keepends), 0)

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        head, found, rest = self._parts(super().partition(sep), 0)
        return head, found, rest

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        head, found, rest = self._parts(super().rpartition(sep), 0)
        return head, found, rest

    def replace(self, old: str, new: str, /, count: Any = -1) -> str:
        if not old:
            return Said(super().replace(old, new, count))
        first, *others = self.split(old, count)
        return concat((first, *(part for other in others for part in (new, other))))

    def _parts(self, parts: Iterable[str], gap: int) -> list[str]:
        """Substrings in their order, with at least `gap` characters left out between two of them."""
        found, at = list[str](), 0
        for part in parts:
            at = self.index(part, at)
            found.append(self[at : at + len(part)])
            at += len(part) + gap
        return found


Said.__name__ = "str"  # templates' error messages name the type


def mask(text: str) -> bytes:
    """One byte for each character: 1 if it comes from a message, 0 if the template wrote it."""
    return text._mask if isinstance(text, Said) else bytes(len(text))


def same_origin(text: str, other: str) -> bool:
    """Whether each character of two equal texts has the same origin in both; white space may come from either."""
    mine, its = mask(text), mask(other)
    if mine == its:
        return True
    triples = zip(text, mine, its, strict=True)
    return all(a == b or character.isspace() for character, a, b in triples)


def concat(parts: Iterable[str]) -> str:
    """The parts joined, each character with its origin."""
    parts = list(parts)
    text = "".join(parts)
    return Said(text, b"".join(map(mask, parts))) if any(isinstance(part, Said) for part in parts) else text


def written(value: Any) -> str:
    """`str(value)` with the origin of each character; the text of what is neither text, number nor container counts as
    a message's."""
    if isinstance(value, (str, int, float, Undefined)) or value is None:
        return str(value)
    return str(followed(str, value)) if isinstance(value, (list, tuple, dict)) else Said(str(value))


def followed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a function without side effects, with the origin of each character.

    A second run on text in which a mark stands for each message's character shows where these end up. If the two runs
    differ otherwise, all of the result counts as a message's.
    """
    args = tuple(list(value) if isinstance(value, Iterator) else value for value in args)
    result = function(*args, **kwargs)
    if not _holds_text(result) or not _holds_said(both := [list(args), kwargs]):
        return result
    again = None
    with suppress(Exception):  # the run on other text may fail in any way
        marked_args, marked_kwargs = _marked(both)
        again = function(*marked_args, **marked_kwargs)
    return _traced(result, again)


def _holds_text(value: Any) -> bool:
    return any(map(_holds_text, value)) if type(value) in (list, tuple) else isinstance(value, str)


def _holds_said(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_said, value.items()))
    if isinstance(value, (list, tuple, KeysView, ValuesView, ItemsView)):
        return any(map(_holds_said, value))
    return isinstance(value, _OPAQUE) or (isinstance(value, Said) and 1 in value._mask)


def _marked(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_marked, value))
    if isinstance(value, (list, KeysView, ValuesView, ItemsView)):
        return list(map(_marked, value))
    if isinstance(value, dict):
        return {_marked(key): _marked(item) for key, item in value.items()}
    if isinstance(value, _OPAQUE):
        return None  # of text made from these, nothing is known
    if not isinstance(value, Said):
        return value
    pairs = zip(str.__iter__(value), value._mask, strict=True)
    return "".join(_MARK if said and not char.isspace() else char for char, said in pairs)


def _traced(result: Any, again: Any) -> Any:
    if type(result) in (list, tuple):
        others = again if type(again) is type(result) and len(again) == len(result) else [None] * len(result)
        return type(result)(map(_traced, result, others))
    if not isinstance(result, str):
        return result
    if isinstance(again, str) and len(again) == len(result):
        pairs = list(zip(again, str.__iter__(result), strict=True))
        if all(theirs in (_MARK, ours) for theirs, ours in pairs):
            return Said(result, bytes(theirs == _MARK for theirs, _ in pairs))
    return Said(result)
