"""What the chat needs of an engine, and nothing more."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from specdec_onnx.tui.pieces import Piece
from specdec_onnx.tui.settings import Settings

Message = dict[str, str]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Request:
    """Answer the last of `messages`; `partial` is the beginning of an answer to go on with.

    `fresh` forbids drafts from earlier answers: a comparison would otherwise copy the answer it has just seen.
    """

    messages: Sequence[Message]
    settings: Settings
    mode: str = "auto"
    partial: str = ""
    fresh: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; of the settings, what a conversation is stored with."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "messages": list(self.messages), "settings": self.settings.as_dict()}

    @classmethod
    def from_dict(cls, sent: Mapping[str, Any]) -> "Request":
        """Read what `as_dict` made."""
        return cls(**{**sent, "settings": Settings.from_dict(sent["settings"])})


@dataclass(frozen=True, slots=True)
class Round:
    """What one pass of the target brought; `pieces` hold the rejected tokens too."""

    text: str
    pieces: tuple[Piece, ...]
    reason: str | None = None

    @property
    def tokens(self) -> int:
        """New tokens of the answer."""
        return sum(piece.source != "rejected" for piece in self.pieces)


class Session(Protocol):
    """A loaded pair. `reply` runs in the engine's thread, `cancel` may be called from any."""

    @property
    def name(self) -> str:
        """Name of the pair."""

    @property
    def about(self) -> str:
        """Formats and device in a few words."""

    @property
    def device(self) -> str:
        """Where the target runs; for device `auto`, the one that was chosen."""

    @property
    def modes(self) -> tuple[str, ...]:
        """The ways to decode that this pair offers, "plain" among them."""

    @property
    def context(self) -> int:
        """Most tokens that prompt and answer may hold together."""

    @property
    def exactness(self) -> str:
        """What the self-test showed on this device."""

    def reply(self, request: Request, progress: Progress) -> Iterator[Round]:
        """Stream an answer; `progress(done, total)` reports the reading of the prompt."""

    def statistics(self) -> Mapping[str, Any]:
        """Counts and rates of the last answer."""

    def cancel(self) -> None:
        """End the answer under way after the current pass."""

    def close(self) -> None:
        """Give back what the pair holds; it answers nothing more."""


Opener = Callable[[str, str, Callable[[], None]], Session]
"""(pair folder, device, told before measuring) -> Session; slow, runs in the engine's thread."""
