"""The rows of the history, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specdec_onnx.tui.pieces import Piece

Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; `parent` is the turn it follows, so siblings are branches."""

    id: int
    conversation: str
    parent: int | None
    role: Role
    text: str
    reason: str | None = None
    pieces: Sequence[Piece] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """A tree of turns; `head` is the last turn of the branch that is shown."""

    id: str
    title: str
    model: str
    settings: Mapping[str, Any]
    head: int | None
    created: float
    updated: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A line of the history list; `snippet` marks a match as `search` says."""

    id: str
    title: str
    model: str
    updated: float
    turns: int
    snippet: str = ""
    turn: int | None = None
