"""Tokens as the reader sees them: a text and who said it first."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal, NamedTuple, overload

Source = Literal["target", "draft", "suffix", "rejected"]

_LETTERS: dict[Source, str] = {"target": "t", "draft": "d", "suffix": "s", "rejected": "x"}
_SOURCES = {letter: source for source, letter in _LETTERS.items()}


class Piece(NamedTuple):
    """One token: its text and its source; a rejected one was proposed but is not in the answer."""

    text: str
    source: Source


def as_source(name: str) -> Source:
    """The engine's word for a proposer; an unknown proposer counts as a draft."""
    return name if name in _LETTERS else "draft"


def pack(pieces: Iterable[Piece]) -> str:
    """Compact JSON for the history: [["text", "d"], ...]."""
    rows = [[piece.text, _LETTERS[piece.source]] for piece in pieces]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


class Packed(Sequence[Piece]):
    """What `pack` wrote, read when somebody looks: a conversation is opened more often than its tokens are viewed."""

    def __init__(self, stored: str) -> None:
        self._stored = stored or "[]"

    @cached_property
    def _all(self) -> tuple[Piece, ...]:
        return tuple(Piece(text, _SOURCES.get(letter, "target")) for text, letter in json.loads(self._stored))

    def __len__(self) -> int:
        return len(self._all)

    def __bool__(self) -> bool:
        return self._stored != "[]"

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._all)

    @overload
    def __getitem__(self, at: int) -> Piece: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Piece, ...]: ...

    def __getitem__(self, at: int | slice) -> Piece | tuple[Piece, ...]:
        return self._all[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)


def counts(pieces: Iterable[Piece]) -> dict[Source, int]:
    """How many tokens came from each source."""
    totals: dict[Source, int] = dict.fromkeys(_LETTERS, 0)
    for piece in pieces:
        totals[piece.source] += 1
    return totals
