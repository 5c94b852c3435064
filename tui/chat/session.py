"""What the chat needs of an engine: the messages both exchange, and a loaded pair as the chat sees it."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Protocol

from specdec_onnx.tui.chat.settings import Settings

Source = Literal["target", "draft", "suffix", "rejected"]

_LETTERS: dict[Source, str] = {"target": "t", "draft": "d", "suffix": "s", "rejected": "x"}
_SOURCES = {letter: source for source, letter in _LETTERS.items()}


class Piece(NamedTuple):
    """One token: its text and its source; a rejected one was proposed but is not in the answer."""

    text: str
    source: Source


def as_source(name: str) -> Source:
    """The source that the engine names; an unknown one counts as a draft."""
    return name if name in _LETTERS else "draft"


def pack(pieces: Iterable[Piece]) -> str:
    """Compact JSON for the history: [["text", "d"], ...]."""
    rows = [[piece.text, _LETTERS[piece.source]] for piece in pieces]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def unpack(stored: str) -> tuple[Piece, ...]:
    """Read what `pack` wrote."""
    return tuple(Piece(text, _SOURCES.get(letter, "target")) for text, letter in json.loads(stored or "[]"))


def counts(pieces: Iterable[Piece]) -> dict[Source, int]:
    """How many tokens came from each source."""
    totals: dict[Source, int] = dict.fromkeys(_LETTERS, 0)
    for piece in pieces:
        totals[piece.source] += 1
    return totals


Message = dict[str, str]
OnProgress = Callable[[int, int], None]
"""Told how many tokens of the prompt have been read, and of how many."""


@dataclass(frozen=True, slots=True)
class Request:
    """Answer the last of `messages`; `partial` is the beginning of an answer to continue.

    Drafts come from this `conversation` only, and with `fresh` not from its earlier answers either: a comparison would
    otherwise copy the answer it has just seen.
    """

    messages: Sequence[Message]
    settings: Settings
    mode: str = "auto"
    partial: str = ""
    conversation: str = ""
    fresh: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; of the settings, what a conversation is stored with."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "messages": list(self.messages), "settings": self.settings.as_dict()}

    @classmethod
    def from_dict(cls, sent: Mapping[str, Any]) -> "Request":
        """Read what `as_dict` returned."""
        return cls(**{**sent, "settings": Settings.from_dict(sent["settings"])})


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one target pass; `pieces` hold the rejected tokens too."""

    text: str
    pieces: tuple[Piece, ...]
    reason: str | None = None

    @property
    def tokens(self) -> int:
        """New tokens of the answer."""
        return sum(piece.source != "rejected" for piece in self.pieces)


class Session(Protocol):
    """A loaded pair."""

    name: str
    about: str
    """Formats and device in a few words."""
    device: str
    """Where the target runs; for device `auto`, the one that was chosen."""
    modes: tuple[str, ...]
    """The ways to decode that this pair offers, "plain" among them."""
    context: int
    """Most tokens that prompt and answer may hold together."""
    exactness: str
    """What the self-test showed on this device."""

    @property
    def running(self) -> bool:
        """Whether it can still answer."""

    def reply(self, request: Request, on_progress: OnProgress) -> AsyncIterator[Round]:
        """Stream an answer."""

    def statistics(self) -> Mapping[str, Any]:
        """Counts and rates of the last answer."""

    def cancel(self) -> None:
        """End the answer under way after the current pass."""

    async def close(self) -> None:
        """Free what the pair holds; it answers nothing more."""


Opener = Callable[[str, str, Callable[[], None]], Awaitable[Session]]
"""(pair folder, device, called before measuring) -> Session."""
