"""Run prompts through the engine's modes, one mode after the other on each prompt."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specdec_onnx.tui.bench.prompts import Prompt

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.sampling import Parameters
    from specdec_onnx.runtime.statistics import Statistics

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt answered in one mode; statistics of each turn."""

    category: str
    mode: str
    tokens: tuple[int, ...]
    turns: tuple["Statistics", ...]

    @property
    def decode_seconds(self) -> float:
        """Seconds spent on new tokens, all turns together."""
        return sum(turn.decode_seconds for turn in self.turns)


Round = dict[str, Run]
"""What one prompt gave, by mode."""


def measure(
    engine: "Engine",
    prompts: Sequence[Prompt],
    modes: Sequence[str],
    parameters: "Parameters",
    *,
    raw: bool = False,
    repeat: int = 1,
    on_run: Callable[[Run], None] = lambda run: None,
) -> Iterator[Round]:
    """Yield one round for each prompt; of `repeat` runs the one with the median decoding time counts.

    The modes take turns at going first, so that a machine that warms up or slows down favours none of them.
    """
    _warm_up(engine, prompts[0], modes, parameters, raw)
    for number, prompt in enumerate(prompts):
        runs: dict[str, list[Run]] = {mode: [] for mode in modes}
        for turn in range(repeat):
            first = (number + turn) % len(modes)
            for mode in [*modes[first:], *modes[:first]]:
                runs[mode].append(answer(engine, prompt, mode, parameters, raw=raw))
                on_run(runs[mode][-1])
        yield {mode: _median(runs[mode]) for mode in modes}


def answer(
    engine: "Engine", prompt: Prompt, mode: str, parameters: "Parameters", *, raw: bool = False
) -> Run:
    """Let the engine answer every turn of one prompt, from empty caches."""
    engine.forget()
    ask: dict[str, Any] = {"parameters": parameters, "mode": mode}
    conversation = engine.chat() if len(prompt.turns) > 1 else None
    tokens: list[int] = []
    turns: list[Statistics] = []
    for text in prompt.turns:
        steps = conversation.send(text, **ask) if conversation else engine.stream(text, raw=raw, **ask)
        tokens += [token for step in steps for token in step.tokens]
        turns.append(engine.last.statistics)
    return Run(prompt.category, mode, tuple(tokens), tuple(turns))


def _warm_up(
    engine: "Engine", prompt: Prompt, modes: Sequence[str], parameters: "Parameters", raw: bool
) -> None:
    """The first passes allocate; nobody should pay for that in a measurement."""
    brief = replace(parameters, max_new_tokens=WARM_UP_TOKENS)
    for mode in modes:
        answer(engine, prompt, mode, brief, raw=raw)


def _median(runs: Sequence[Run]) -> Run:
    return sorted(runs, key=lambda run: run.decode_seconds)[(len(runs) - 1) // 2]
