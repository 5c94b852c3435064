"""Which contestant answers which prompt when, and what they give.

As in use, prompts come in any order and nothing is emptied between them: what an answer leaves in the caches, and whatever
else an engine remembers, meets the next prompt. For a fair comparison no answer may find its own prompt in a cache. So no
prompt follows itself: the shuffled prompts are cut into blocks of about as many as there are contestants, and a block is
gone through once for each of them, prompt by prompt, with the next contestant every time. Within a block, all modes meet a
prompt right behind the same other one and soon after each other, however the machine's speed drifts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

from specdec_onnx.tui.bench.contestant import Contestant, Run
from specdec_onnx.tui.bench.prompts import Prompt

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
