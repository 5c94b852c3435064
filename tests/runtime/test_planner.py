"""The planner's decisions follow from costs and chances alone."""

import pytest

from specdec_onnx.runtime.costs import LONGEST_DRAFT, Curve
from specdec_onnx.runtime.planner import Planner

FLAT = Curve((1, 2, 16), (0.100, 0.100, 0.114))  # w8a8: checking is nearly free
STEEP = Curve((1, 2, 16), (0.060, 0.070, 0.270))  # int4: every row costs
CHEAP = Curve((1, 8), (0.012, 0.020))
DEAR = Curve((1, 8), (0.090, 0.120))


def longest(planner: Planner, confidence: float) -> int:
    """How far a draft with this confidence for each token goes."""
    chance, drafted = 1.0, 0
    while drafted < LONGEST_DRAFT and planner.worth_drafting(chance, drafted + 1):
        chance *= confidence
        if not planner.worth_checking(chance, drafted + 1):
            break
        drafted += 1
    return drafted


def settle(planner: Planner, acceptance: float, rounds: int = 60) -> None:
    """Let the running averages see drafts of four with this share kept."""
    for number in range(rounds):
        kept = round(4 * acceptance) if number % 2 else int(4 * acceptance)
        planner.observe_draft(4, kept)
        seconds = planner.target(5) + 4 * planner.draft(1)
        planner.observe_round(kept + 1, seconds, 5, planner.target(5))


def test_flat_verification_drafts_longer_than_steep() -> None:
    assert longest(Planner(FLAT, CHEAP), 0.9) > longest(Planner(STEEP, CHEAP), 0.9) > 0


def test_confidence_lengthens_the_draft() -> None:
    lengths = [longest(Planner(FLAT, CHEAP), confidence) for confidence in (0.3, 0.6, 0.9, 0.99)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_a_draft_that_costs_as_much_as_the_target_is_never_run() -> None:
    planner = Planner(FLAT, DEAR)
    assert not planner.worth_drafting(1.0, 1)
    assert not planner.draft_is_on()


def test_a_bad_draft_is_switched_off_and_tried_again() -> None:
    planner = Planner(FLAT, CHEAP)
    assert planner.draft_is_on()
    settle(planner, 0.0)
    assert not planner.draft_is_on()
    rested = 0
    while not planner.draft_is_on():
        planner.observe_idle()
        rested += 1
    settle(planner, 0.0, rounds=1)
    again = 0
    while not planner.draft_is_on():
        planner.observe_idle()
        again += 1
    assert again >= rested > 1


def test_a_draft_that_recovers_stays_on() -> None:
    planner = Planner(FLAT, CHEAP)
    settle(planner, 0.0)
    settle(planner, 1.0)
    assert planner.draft_gain() > 0
    assert planner.draft_is_on()


def test_the_rate_never_falls_below_plain_decoding() -> None:
    planner = Planner(FLAT, CHEAP)
    for _ in range(50):
        planner.observe_round(1, 0.5, 1, 0.1)
    assert planner.rate == pytest.approx(10.0)


def test_a_token_that_adds_no_time_is_always_checked() -> None:
    assert Planner(FLAT).worth_checking(0.01, 1)
    assert not Planner(STEEP).worth_checking(0.01, 1)


def test_costs_follow_the_running_machine() -> None:
    curve = Curve((1, 4), (0.1, 0.2))
    for _ in range(100):
        curve.observe(4, 0.4, 0.1)
    assert curve(1) == pytest.approx(0.2, rel=1e-3)


def test_costs_behind_the_last_width_go_on_in_a_line() -> None:
    curve = Curve((1, 2, 4), (0.1, 0.1, 0.2))
    assert [curve(width) for width in (3, 4, 6, 8)] == pytest.approx([0.15, 0.2, 0.3, 0.4])


def test_gain_of_a_free_proposal() -> None:
    planner = Planner(FLAT)
    assert planner.gain([]) == 0
    assert planner.gain([0.9, 0.8, 0.7]) > planner.gain([0.9, 0.8]) > 0
    assert Planner(STEEP).gain([0.1, 0.01, 0.001]) < 0
