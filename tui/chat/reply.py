"""One answer while it streams, and its figures in words."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_onnx.models.text import percent
from specdec_onnx.tui.chat.session import Piece, Request, Round, counts

Clock = Callable[[], float]


@dataclass(slots=True)
class Reply:
    """The growing answer to one request: the engine's client fills it, a screen draws it.

    A continued answer starts with the `pieces` and `rounds` it has; figures are those of the new part.
    """

    turn: int
    request: Request
    clock: Clock = time.perf_counter
    text: str = ""
    pieces: list[Piece] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    reading: tuple[int, int] | None = None
    reason: str | None = None
    """How it ended; None while more may come."""
    error: BaseException | None = None
    final: Mapping[str, Any] | None = None
    asked: float = 0.0
    first: float = 0.0
    last: float = 0.0
    stopping: bool = False
    """Asked to stop; the engine may need a pass before it does."""
    _pieces_before: int = 0
    _rounds_before: int = 0
    _ending: str | None = None
    _cancel: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.asked = self.clock()
        self.text = self.request.partial
        self._pieces_before, self._rounds_before = len(self.pieces), len(self.rounds)

    def begin(self, cancel: Callable[[], None]) -> None:
        """The engine takes it up; `cancel` stops it there."""
        self.asked, self._cancel = self.clock(), cancel

    def read(self, done: int, total: int) -> None:
        """So many tokens of the prompt have been read."""
        self.reading = (done, total)

    def take(self, round_: Round) -> None:
        """Append a round; one that arrives after the end is dropped."""
        if self.reason is not None:
            return
        self.last = self.clock()
        self.first = self.first or self.last
        self.text += round_.text
        self.pieces.extend(round_.pieces)
        if round_.tokens:
            self.rounds.append(round_.tokens)
        self._ending = round_.reason

    def end(self, statistics: Mapping[str, Any]) -> None:
        """The engine has finished, with these counts."""
        self.final = dict(statistics)
        self.reason = self.reason or self._ending or "cancelled"

    def fail(self, error: BaseException) -> None:
        """End with an error; the text so far stays."""
        self.error, self.reason = error, "error"

    def cancel(self) -> None:
        """Ask the engine to stop; the text so far stays. An answer that has not begun ends at once."""
        self.stopping = True
        if self._cancel is None:
            self.close()
        elif self.reason is None:
            self._cancel()

    def close(self) -> None:
        """Take nothing more, whether or not the engine has finished."""
        self.reason = self.reason or "cancelled"

    def statistics(self) -> dict[str, Any]:
        """The engine's counts once it has finished, until then the same counted here."""
        return {**self._counted(), **(self.final or {}), "tokens_by_round": list(self.rounds)}

    def _counted(self) -> dict[str, Any]:
        by, own = counts(self.pieces[self._pieces_before :]), self.rounds[self._rounds_before :]
        accepted = by["draft"] + by["suffix"]
        new, drafted, rounds = accepted + by["target"], accepted + by["rejected"], len(own)
        seconds = self.last - self.first
        return {
            "new_tokens": new,
            "rounds": rounds,
            "drafted": drafted,
            "accepted": accepted,
            "tokens_per_round": new / rounds if rounds else 0.0,
            "acceptance_rate": accepted / drafted if drafted else 0.0,
            # The first round's tokens came at the clock's start, so they don't count towards the rate.
            "decode_tokens_per_second": (new - own[0]) / seconds if rounds > 1 and seconds else 0.0,
            "time_to_first_token_ms": 1e3 * (self.first - self.asked) if self.first else 0.0,
            "seconds": (self.last or self.asked) - self.asked,
            "mode": self.request.mode,
        }


BARS = "▁▂▃▄▅▆▇█"
ENDINGS = {
    "cancelled": "stopped",
    "length": "reached the length limit (Ctrl+G continues)",
    "context": "the context is full",
    "error": "failed",
}
WARMED_UP = 24
"""Tokens from which on an answer without drafts needs a reason."""


def steady_rate(tokens_per_second: float) -> str:
    """`42 tok/s`: no decimal that would flicker while the answer comes."""
    return f"{tokens_per_second:.{0 if tokens_per_second >= 10 else 1}f} tok/s"


def figures(statistics: Mapping[str, Any], rate: Callable[[float], str] = steady_rate) -> str:
    """`42 tok/s · 214 tok · 3.1 tok/round · 71 % accepted · first token 0.3 s`; nothing before the first token."""
    if not statistics.get("new_tokens"):
        return ""
    drafted, first = statistics.get("drafted"), statistics.get("time_to_first_token_ms")
    return _joined(
        _speed(statistics, rate),
        f"{statistics['new_tokens']} tok",
        f"{statistics.get('tokens_per_round', 0.0):.1f} tok/round" if drafted else "",
        _accepted(statistics),
        f"first token {first / 1000:.1f} s" if first else "",
    )


def answer_note(reason: str | None, statistics: Mapping[str, Any]) -> str:
    """The line under an answer; one without a reason was cut off when the program ended."""
    if reason is None:
        return "interrupted" if statistics else ""
    why = (
        f": {str(statistics['error']).removesuffix('.')}"
        if reason == "error" and statistics.get("error")
        else ""
    )
    ending, new = ENDINGS.get(reason, "") + why, statistics.get("new_tokens")
    left_out = f"without the first {count} messages" if (count := statistics.get("left_out")) else ""
    speed = (_speed(statistics), f"{new} tok", _accepted(statistics)) if new else ()
    return _joined(ending, left_out, *speed)


def _joined(*parts: str) -> str:
    return " · ".join(filter(None, parts))


def _speed(statistics: Mapping[str, Any], rate: Callable[[float], str] = steady_rate) -> str:
    speed = statistics.get("decode_tokens_per_second") or 0.0
    return rate(speed) if speed else ""


def _accepted(statistics: Mapping[str, Any]) -> str:
    return f"{percent(statistics.get('acceptance_rate', 0.0))} accepted" if statistics.get("drafted") else ""


def sparkline(rounds: Sequence[int], width: int) -> str:
    """Tokens per round of the last `width` rounds, a bar each: the lowest is 1 token, the full one 8 or more."""
    return "".join(BARS[min(max(size, 1), len(BARS)) - 1] for size in rounds[-width:]) if width > 0 else ""


def meter(used: int, limit: int, width: int = 8) -> str:
    """`▰▰▱▱▱▱▱▱ 21 %` of the context."""
    share = min(used / limit, 1.0) if limit else 0.0
    full = round(share * width)
    return f"{'▰' * full}{'▱' * (width - full)} {percent(share)}"


def tokens_used(statistics: Mapping[str, Any]) -> int:
    """Tokens of the context that an answer fills: its prompt and itself."""
    return int(statistics.get("prompt_tokens", 0)) + int(statistics.get("new_tokens", 0))


def why_plain(speculate: bool, modes: Sequence[str]) -> str:
    """Why no answer will be drafted, known before any token; empty while speculation is on."""
    if not speculate:
        return "speculation off: F4 turns it on"
    if set(modes) <= {"plain"}:
        return "speculation off: this model supports only plain decoding"
    return ""


def why_nothing_drafted(statistics: Mapping[str, Any], modes: Sequence[str]) -> str:
    """Why an answer that ran with speculation on shows no accepted drafts."""
    if statistics.get("mode") == "plain" or statistics.get("new_tokens", 0) < WARMED_UP:
        return ""
    if statistics.get("accepted", 0):
        return ""
    if statistics.get("drafted", 0):
        return "every draft was rejected; every token is the target's own"
    if "draft" not in modes:
        return "nothing was drafted: there is no draft model, and nothing in the text repeats so far"
    return "nothing was drafted: plain decoding was measured to be faster here"


def limits(modes: Sequence[str]) -> str:
    """What speculation can't use here, although it is on."""
    return "no draft model: drafts come from the text so far" if modes and "draft" not in modes else ""
