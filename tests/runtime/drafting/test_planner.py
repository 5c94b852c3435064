"""The planner's decisions follow from costs and chances alone."""

import pytest

from specdec_onnx.runtime.drafting.planner import Planner
from specdec_onnx.runtime.machine.costs import LONGEST_DRAFT, Curve, predicted_speedup


def flat() -> Curve:
    """w8a8 on a processor that multiplies int8 well: checking is nearly free."""
    return Curve((1, 2, 16), (0.100, 0.100, 0.114))


def steep() -> Curve:
    """int4: every row costs."""
    return Curve((1, 2, 16), (0.060, 0.070, 0.270))


def cheap() -> Curve:
    """A draft model at an eighth of its target."""
    return Curve((1, 8), (0.012, 0.020))


def dear() -> Curve:
    """A draft model that costs as much as its target."""
    return Curve((1, 8), (0.090, 0.120))


def longest(planner: Planner, confidence: float) -> int:
    """How far a draft with this confidence for each token goes."""
    chance, drafted = 1.0, 0
    while drafted < LONGEST_DRAFT and planner.worth_drafting(chance, drafted + 1):
        chance *= confidence
        if not planner.worth_checking(chance, drafted + 1):
            break
        drafted += 1
    return drafted


def settle(planner: Planner, kept: int, rounds: int = 60) -> None:
    """Let the planner see rounds of four drafted tokens, `kept` of them kept."""
    for _ in range(rounds):
        planner.observe_draft(4, kept)
        seconds = planner.target(5) + 4 * cheap()(1)
        planner.observe_round(kept + 1, seconds, 5, planner.target(5))


def rest(planner: Planner) -> int:
    """Rounds until the draft model is tried again."""
    rounds = 0
    while not planner.draft_switch.on:
        planner.draft_switch.idle()
        rounds += 1
    return rounds


def test_flat_verification_drafts_longer_than_steep() -> None:
    assert longest(Planner(flat(), cheap()), 0.9) > longest(Planner(steep(), cheap()), 0.9) > 0


def test_confidence_lengthens_the_draft() -> None:
    lengths = [longest(Planner(flat(), cheap()), confidence) for confidence in (0.3, 0.6, 0.9, 0.99)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_a_draft_that_costs_as_much_as_the_target_stops_after_one_token() -> None:
    assert longest(Planner(flat(), dear()), 0.9) == 1


def test_a_bad_draft_rests_longer_after_each_failed_retrial() -> None:
    planner = Planner(flat(), cheap())
    assert planner.draft_switch.on
    rests = []
    for _ in range(4):
        while planner.draft_switch.on:
            settle(planner, 0, rounds=1)
        rests.append(rest(planner))
    assert rests[0] > 10  # the first trial was longer: it had a promise to disprove
    assert 10 < rests[1] < rests[2] < rests[3]


def test_one_unlucky_round_does_not_end_the_first_trial() -> None:
    planner = Planner(flat(), cheap())
    planner.observe_draft(11, 0)
    planner.observe_round(1, planner.target(12) + 11 * cheap()(1), 12, planner.target(12))
    assert planner.draft_switch.on


def test_a_slow_moment_is_not_held_against_the_draft() -> None:
    planner = Planner(flat(), cheap())
    for _ in range(60):
        planner.observe_draft(4, 3)
        planner.observe_round(4, 5 * (planner.target(5) + 4 * cheap()(1)), 5, 5 * planner.target(5))
    assert planner.draft_switch.on


def test_predicted_speedup() -> None:
    target, draft = Curve((1, 8, 16), (0.1, 0.1, 0.1)), Curve((1, 8), (0.01, 0.08))
    assert predicted_speedup(0.0, target, draft) == 1.0
    assert predicted_speedup(0.5, target, Curve((1, 8), (1e3, 1e3))) == 1.0
    assert predicted_speedup(1.0, target, draft) == pytest.approx(9 * 100 / (100 + 80))
    assert predicted_speedup(0.5, target, draft) == pytest.approx(1.75 / 1.2)


def test_a_draft_that_recovers_stays_on() -> None:
    planner = Planner(flat(), cheap())
    settle(planner, 0)
    rest(planner)
    settle(planner, 4)
    assert planner.draft_switch.on
    assert planner.draft_gain() > planner.gain([])


def test_a_round_that_others_led_says_nothing_about_the_draft() -> None:
    planner = Planner(flat(), cheap())
    for _ in range(20):
        planner.observe_draft(4, 0, alone=False)
        planner.observe_round(1, 1.0, 5, 0.1)
    assert planner.draft_switch.on


def test_the_rate_never_falls_below_plain_decoding() -> None:
    planner = Planner(flat(), cheap())
    for _ in range(50):
        planner.observe_round(1, 0.5, 1, 0.1)
    assert planner.rate == pytest.approx(10.0)


def test_a_token_that_adds_no_time_is_always_checked() -> None:
    assert Planner(flat()).worth_checking(0.01, 1)
    assert not Planner(steep()).worth_checking(0.01, 1)


def test_costs_follow_the_running_machine() -> None:
    curve = Curve((1, 4), (0.1, 0.2))
    for _ in range(100):
        curve.observe(4, 0.4, 0.1)
    assert curve(1) == pytest.approx(0.2, rel=1e-3)


def test_costs_behind_the_last_width_go_on_in_a_line() -> None:
    curve = Curve((1, 2, 4), (0.1, 0.1, 0.2))
    assert [curve(width) for width in (3, 4, 6, 8)] == pytest.approx([0.15, 0.2, 0.3, 0.4])


def test_attention_over_the_text_before_a_pass_is_part_of_its_cost() -> None:
    curve = Curve((1, 5), (0.02, 0.04), per_token=(1e-6, 3e-6))
    curve.context = 10_000
    assert [curve(width) for width in (1, 3, 5)] == pytest.approx([0.03, 0.05, 0.07])
    curve.observe(1, 0.06, 1.0)
    assert curve(5) == pytest.approx(0.14)


def test_more_is_drafted_after_a_long_text() -> None:
    """A pass costs more there and reads the text once for all of its rows, so that a further row is cheap beside it."""
    target = Curve((1, 8), (0.02, 0.034), per_token=(2e-6, 2e-6))
    planner = Planner(target, Curve((1, 8), (0.006, 0.02), per_token=(1e-7, 1e-7)))
    planner.begin_round(100)
    assert not planner.worth_drafting(0.4, 3) and not planner.worth_checking(0.08, 3)
    planner.begin_round(20_000)
    assert planner.worth_drafting(0.4, 3) and planner.worth_checking(0.08, 3)


def test_gain_of_a_free_proposal() -> None:
    planner = Planner(flat())
    assert planner.gain([]) == pytest.approx(0)
    assert planner.gain([0.9, 0.8, 0.7]) > planner.gain([0.9, 0.8]) > 0
    assert Planner(steep()).gain([0.1, 0.01, 0.001]) < 0
