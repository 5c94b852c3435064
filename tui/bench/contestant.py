"""Who answers the prompts of a benchmark, and one answer with what it cost."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

from specdec_onnx.tui.bench.prompts import Prompt

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.sampling import Parameters
    from specdec_onnx.runtime.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt answered in one mode; statistics of each turn."""

    category: str
    mode: str
    tokens: tuple[int, ...]
    turns: tuple["Statistics", ...]

    def total(self, count: str) -> float:
        """The sum of one of the fields of `Statistics`, all turns together."""
        return sum(getattr(turn, count) for turn in self.turns)

    @property
    def seconds_per_token(self) -> float:
        """Decoding seconds of an average new token."""
        return self.total("decode_seconds") / max(1, len(self.tokens))


class Contestant(Protocol):
    """One way to answer; all of them take turns on each prompt."""

    @property
    def name(self) -> str:
        """What its figures are listed under."""

    def answer(self, prompt: Prompt, most: int | None = None) -> Run:
        """Answer every turn of one prompt, with at most `most` tokens a turn."""


@dataclass(frozen=True)
class Mode:
    """One of the engine's own modes; `carries` on with the caches as they are, else they are emptied first."""

    engine: "Engine"
    name: str
    parameters: "Parameters"
    raw: bool = False
    carries: bool = False
    on_text: Callable[[str], object] = lambda text: None

    def answer(self, prompt: Prompt, most: int | None = None) -> Run:
        """Stream the answers and keep their tokens and statistics."""
        if not self.carries:
            self.engine.forget()
        settings = replace(self.parameters, max_new_tokens=most) if most else self.parameters
        ask: dict[str, Any] = {"parameters": settings, "mode": self.name}
        conversation = self.engine.chat() if len(prompt.turns) > 1 else None
        tokens: list[int] = []
        turns: list[Statistics] = []
        for text in prompt.turns:
            steps = (
                conversation.send(text, **ask)
                if conversation
                else self.engine.stream(text, raw=self.raw, **ask)
            )
            for step in steps:
                tokens += step.tokens
                self.on_text(step.text)
            turns.append(self.engine.last.statistics)
        return Run(prompt.category, self.name, tuple(tokens), tuple(turns))


def total(runs: Iterable[Run], count: str) -> float:
    """The sum of one of the fields of `Statistics` over several runs."""
    return sum(run.total(count) for run in runs)


def by_position(runs: Iterable[Run], count: str) -> list[int]:
    """The same for a field that counts by position in the draft."""
    columns = zip_longest(*(getattr(turn, count) for run in runs for turn in run.turns), fillvalue=0)
    return [sum(column) for column in columns]


def by_source(runs: Iterable[Run], count: str) -> dict[str, int]:
    """The same for a field that counts by who drafted."""
    sums: dict[str, int] = {}
    for run in runs:
        for turn in run.turns:
            for source, number in getattr(turn, count).items():
                sums[source] = sums.get(source, 0) + number
    return sums
