"""Who answers the prompts of a benchmark, and one answer with what it cost."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from specdec_onnx.tui.bench.prompts import Prompt

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.generate import Statistics
    from specdec_onnx.runtime.sampling.parameters import Parameters


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


WARM_UP_TOKENS = 8

Round = dict[str, list[Run]]
"""What one prompt gave: the runs of each contestant, one for each repeat."""

Slot = tuple[int, int]
"""The place of a prompt in its list, and of the contestant that answers it."""


def orders(prompts: int, repeat: int, seed: int | None) -> list[list[int]]:
    """The order of the prompts for each repeat, shuffled unless `seed` is None; none begins with the last one's end."""
    random, found = Random(seed), list[list[int]]()
    for _ in range(repeat):
        order = list(range(prompts))
        if seed is not None:
            random.shuffle(order)
        if prompts > 1 and found and order[0] == found[-1][-1]:
            order[0], order[1] = order[1], order[0]
        found.append(order)
    return found


def carried(order: Sequence[int], contestants: int) -> Iterator[Slot]:
    """All prompts (2 or more) with all contestants, no prompt twice in a row."""
    size = max(2, contestants)
    starts = range(0, max(1, len(order) - size + 1), size)
    ends = [*starts[1:], len(order)]  # what is left over joins the last block
    for start, end in zip(starts, ends, strict=True):
        for lap in range(contestants):
            for place, prompt in enumerate(order[start:end]):
                yield prompt, (place + lap) % contestants


def in_turn(order: Sequence[int], contestants: int, turn: int = 0) -> Iterator[Slot]:
    """All contestants on each prompt; they take turns at going first."""
    for number, prompt in enumerate(order):
        for place in range(contestants):
            yield prompt, (number + turn + place) % contestants


def warm_up(contestants: Sequence[Contestant], prompt: Prompt) -> None:
    """The first passes allocate; nobody should pay for that in a measurement."""
    for contestant in contestants:
        contestant.answer(prompt, WARM_UP_TOKENS)


def measure(
    contestants: Sequence[Contestant],
    prompts: Sequence[Prompt],
    slots: Iterator[Slot],
    found: Mapping[int, Round],
    on_run: Callable[[Run], None] = lambda run: None,
) -> None:
    """Go through the slots and add each run to the round of its prompt."""
    for prompt, place in slots:
        run = contestants[place].answer(prompts[prompt])
        found[prompt][contestants[place].name].append(run)
        on_run(run)


def finished(found: Mapping[int, Round]) -> list[Round]:
    """The rounds that can be compared, in the prompts' order: as many repeats as all that were begun have, and whole ones."""
    counts = {prompt: min(map(len, round_.values())) for prompt, round_ in found.items()}
    repeats = min((count for count in counts.values() if count), default=0)
    return [
        {name: runs[:repeats] for name, runs in found[prompt].items()}
        for prompt, count in sorted(counts.items())
        if count
    ]
