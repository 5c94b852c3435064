"""Who answers the prompts of a benchmark, in which order, and what answers and passes cost."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from specdec_onnx.runtime.engine import Engine
from specdec_onnx.runtime.generate import Statistics
from specdec_onnx.runtime.machine import costs
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.tui.bench.prompts import Prompt

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt answered by one contestant; statistics of each turn. `again`: the prompt was still in its cache."""

    category: str
    tokens: tuple[int, ...]
    turns: tuple[Statistics, ...]
    again: bool = False

    @property
    def seconds_per_token(self) -> float:
        """Decoding seconds of an average new token."""
        return sum(turn.decode_seconds for turn in self.turns) / max(1, len(self.tokens))


Contestant = Callable[[Prompt, int, bool], Run]
"""One way to answer every turn of a prompt, with at most so many tokens a turn, from its cache if it is asked again."""


def mode_name(mode: str, kernels: str = "") -> str:
    """What the figures of a mode are listed under; the kernels are named if they are not the engine's own."""
    return f"{mode} ({kernels})" if kernels else mode


def answer(
    engine: Engine,
    mode: str,
    prompt: Prompt,
    most: int,
    *,
    parameters: Parameters,
    raw: bool = False,
    keep_caches: bool = False,
    on_text: Callable[[str], object] = lambda text: None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Stream the answers of one of the engine's modes; unless it is to `keep_caches`, they are emptied before.

    `on_progress` is told (done, total), in tokens, while a prompt is read.
    """
    if not keep_caches:
        engine.forget()
    options: dict[str, Any] = {"parameters": replace(parameters, max_new_tokens=most), "mode": mode}
    options |= {"on_progress": on_progress} if on_progress else {}
    chat = engine.chat() if len(prompt.turns) > 1 else None
    tokens: list[int] = []
    turns: list[Statistics] = []
    for text in prompt.turns:
        said = prompt.tokens(engine.pair.target, raw=raw) if prompt.before else text
        for step in chat.send(text, **options) if chat else engine.stream(said, raw=raw, **options):
            tokens += step.tokens
            on_text(step.text)
        turns.append(engine.last.statistics)
    return Run(prompt.category, tuple(tokens), tuple(turns))


Round = dict[str, list[Run]]
"""One prompt's runs by contestant, one for each repeat."""

Slot = tuple[int, int]
"""The index of a prompt, and of the contestant that answers it."""


def orders(prompts: int, repeat: int, seed: int | None) -> list[list[int]]:
    """The order of the prompts in each repeat, shuffled unless `seed` is None; no prompt comes twice in a row."""
    random, result = Random(seed), list[list[int]]()
    for _ in range(repeat):
        order = list(range(prompts))
        if seed is not None:
            random.shuffle(order)
        if prompts > 1 and result and order[0] == result[-1][-1]:
            order[0], order[1] = order[1], order[0]
        result.append(order)
    return result


def alternating(order: Sequence[int], contestants: int) -> Iterator[Slot]:
    """All prompts (2 or more) with all contestants, no prompt twice in a row."""
    size = max(2, contestants)
    starts = range(0, max(1, len(order) - size + 1), size)
    ends = [*starts[1:], len(order)]  # what is left over joins the last block
    for start, end in zip(starts, ends, strict=True):
        for lap in range(contestants):
            for index, prompt in enumerate(order[start:end]):
                yield prompt, (index + lap) % contestants


def in_turn(order: Sequence[int], contestants: int, repeat: int = 0) -> Iterator[Slot]:
    """All contestants on each prompt; they take turns at going first."""
    for number, prompt in enumerate(order):
        for index in range(contestants):
            yield prompt, (number + repeat + index) % contestants


def finished(rounds: Sequence[Round]) -> list[Round]:
    """The rounds of prompts that every contestant answered, with the repeats that all of these have."""
    counts = [min(map(len, round_.values())) for round_ in rounds]
    repeats = min(filter(None, counts), default=0)
    begun = (round_ for round_, count in zip(rounds, counts, strict=True) if count)
    return [{name: runs[:repeats] for name, runs in round_.items()} for round_ in begun]


def forward_cost_ms(engine: Engine) -> dict[str, float]:
    """Milliseconds of a pass of the target by its width in tokens, measured now."""
    print("measuring the cost of a forward pass", file=sys.stderr)
    engine.forget()
    curve = costs.measure_curve(engine.target, costs.TARGET_WIDTHS)
    return {
        str(width): round(1e3 * seconds, 3)
        for width, seconds in zip(curve.widths, curve.seconds, strict=True)
    }
