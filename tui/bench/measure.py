"""Run prompts through several ways to answer, one after the other on each prompt."""

from collections.abc import Callable, Iterator, Sequence

from specdec_onnx.tui.bench.contestant import Contestant, Run
from specdec_onnx.tui.bench.prompts import Prompt

WARM_UP_TOKENS = 8

Round = dict[str, list[Run]]
"""What one prompt gave: the runs of each contestant, one for each repeat."""


def measure(
    contestants: Sequence[Contestant],
    prompts: Sequence[Prompt],
    *,
    repeat: int = 1,
    on_run: Callable[[Run], None] = lambda run: None,
) -> Iterator[Round]:
    """Yield one round for each prompt.

    The contestants take turns at going first, so that a machine that warms up or slows down favours none of them.
    """
    for contestant in contestants:  # the first passes allocate; nobody should pay for that in a measurement
        contestant.answer(prompts[0], WARM_UP_TOKENS)
    for number, prompt in enumerate(prompts):
        round_: Round = {contestant.name: [] for contestant in contestants}
        for turn in range(repeat):
            first = (number + turn) % len(contestants)
            for contestant in [*contestants[first:], *contestants[:first]]:
                run = contestant.answer(prompt)
                round_[contestant.name].append(run)
                on_run(run)
        yield round_
