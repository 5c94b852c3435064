"""The planner against a simulated machine: seconds are made up, the decisions are real."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from specdec_onnx.runtime.drafting.planner import Planner
from specdec_onnx.runtime.machine.costs import Curve

FLAT = Curve((1, 2, 8, 16), (0.075, 0.075, 0.084, 0.091))
STEEP = Curve((1, 2, 8, 16), (0.059, 0.067, 0.133, 0.219))
AVX2 = Curve((1, 2, 5, 8, 16), (0.082, 0.084, 0.120, 0.153, 0.276))
TINY = Curve((1, 2, 8, 16), (0.006, 0.006, 0.015, 0.028))
DRAFT = Curve((1, 8), (0.0127, 0.030))
MACHINES = {
    "flat": (FLAT, DRAFT),
    "steep": (STEEP, DRAFT),
    "avx2": (AVX2, DRAFT),
    "tiny target": (TINY, DRAFT),
}
TOKENS = 3000
OVERHEAD = 0.001

Choose = Callable[[Planner, list[float]], int]


def confidences(seed: int, easy: float) -> list[list[float]]:
    """For each round the draft's honest confidence in its next tokens; `easy` is the share of easy ones."""
    random = np.random.default_rng(seed)
    kinds = random.random((TOKENS, 32)) < easy
    return np.where(
        kinds, random.uniform(0.9, 1.0, kinds.shape), random.uniform(0.05, 0.6, kinds.shape)
    ).tolist()


def planned(planner: Planner, expected: list[float]) -> int:
    """What the draft model does with a planner: how many of these tokens it drafts."""
    if not planner.draft_switch.on:
        planner.draft_switch.idle()
        return 0
    chance, drafted = 1.0, 0
    while drafted < 31 and planner.worth_drafting(chance, drafted + 1):
        chance *= expected[drafted]
        if not planner.worth_checking(chance, drafted + 1):
            break
        drafted += 1
    return drafted


def fixed(length: int) -> Choose:
    return lambda planner, expected: length


def rate(machine: str, easy: float, choose: Choose, overhead: float = OVERHEAD) -> float:
    """Tokens per simulated second."""
    target, draft = MACHINES[machine]
    planner = Planner(Curve(target.widths, target.seconds), Curve(draft.widths, draft.seconds))
    random = np.random.default_rng(99)
    tokens, seconds = 0, 0.0
    for expected in confidences(7, easy):
        drafted = choose(planner, expected)
        kept = next((k for k in range(drafted) if random.random() >= expected[k]), drafted)
        verify = target(drafted + 1)
        round_seconds = verify + drafted * draft(1) + (overhead if drafted else 0)
        if drafted:
            planner.observe_draft(drafted, kept)
        planner.observe_round(kept + 1, round_seconds, drafted + 1, verify)
        tokens, seconds = tokens + kept + 1, seconds + round_seconds
    return tokens / seconds


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("easy", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_never_slower_than_plain_and_near_the_best_fixed_length(machine: str, easy: float) -> None:
    auto, plain = rate(machine, easy, planned), rate(machine, easy, fixed(0))
    best = max(rate(machine, easy, fixed(length)) for length in (0, 1, 2, 3, 4, 6, 8, 12, 16))
    assert auto >= 0.97 * plain
    assert auto >= 0.95 * best


def test_a_costly_round_does_not_ruin_it() -> None:
    """20 ms lost in every speculative round: high acceptance may still lose, and must then be switched off."""
    auto, plain = (rate("tiny target", 0.9, choose, overhead=0.020) for choose in (planned, fixed(0)))
    assert auto >= 0.97 * plain


def test_easier_text_is_faster() -> None:
    rates = [rate("flat", easy, planned) for easy in (0.0, 0.3, 0.6, 0.9, 1.0)]
    assert all(slower <= faster for slower, faster in pairwise(rates))
