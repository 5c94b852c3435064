"""Tokens as the reader sees them: a text and who said it first."""

import json
from collections.abc import Iterable
from typing import Literal, NamedTuple

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


def unpack(stored: str) -> list[Piece]:
    """Read what `pack` wrote."""
    return [Piece(text, _SOURCES.get(letter, "target")) for text, letter in json.loads(stored or "[]")]


def counts(pieces: Iterable[Piece]) -> dict[Source, int]:
    """How many tokens came from each source."""
    totals: dict[Source, int] = dict.fromkeys(_LETTERS, 0)
    for piece in pieces:
        totals[piece.source] += 1
    return totals
