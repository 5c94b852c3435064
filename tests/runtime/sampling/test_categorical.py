"""Distributions over token ids, draws from them, and the history that penalties look at."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.chi_square import p_value

from specdec_onnx.runtime.sampling.sampler import Categorical, Chance, History

tokens = st.lists(st.integers(0, 8), max_size=6)


def test_draws_fit_the_distribution_and_never_leave_its_support() -> None:
    for categorical in (
        Categorical(np.array([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])),
        Categorical(np.array([0.25, 0.75]), np.array([7, 900])),
    ):
        chance = Chance(5)
        counts = Counter(chance.draw(categorical) for _ in range(20_000))
        shares = zip(categorical.token_ids.tolist(), categorical.probs.tolist(), strict=True)
        assert p_value(counts, dict(shares)) > 1e-3


class Lowest:
    """A generator at the lower end of its range."""

    def random(self) -> float:
        return 0.0


def test_what_has_no_probability_never_happens() -> None:
    chance = Chance()
    chance._generator = Lowest()  # type: ignore[assignment]
    assert chance.draw(Categorical(np.array([0.0, 0.5, 0.5]))) == 1
    assert not chance.flip(0.0) and chance.flip(1e-9)


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    even = Categorical(np.full(50, 0.02))
    first, again, other = ([chance.draw(even) for _ in range(20)] for chance in map(Chance, (1, 1, 2)))
    assert first == again != other
    assert [Chance().draw(even) for _ in range(20)] != [Chance().draw(even) for _ in range(20)]


def spread(categorical: Categorical, size: int) -> NDArray[np.float64]:
    return categorical.at(np.arange(size))


shapes = st.sampled_from([None, [0, 2, 3], [1, 2, 5], [4]])


@given(shapes, shapes, st.sampled_from([1.0, 0.6, 0.1]), st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_an_excess_is_what_p_has_over_q_in_any_form(
    mine: list[int] | None, theirs: list[int] | None, scale: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)

    def made(ids: list[int] | None) -> Categorical:
        weights = generator.random(6 if ids is None else len(ids))
        return Categorical(weights / weights.sum(), None if ids is None else np.array(ids))

    p, q = made(mine), made(theirs)
    difference = np.maximum(scale * spread(p, 6) - spread(q, 6), 0)
    np.testing.assert_allclose(p.excess(q, scale), difference[p.token_ids], atol=1e-15)
    if difference.sum() > 0:
        np.testing.assert_allclose(spread(p.residual(q, scale), 6), difference / difference.sum(), atol=1e-12)
    assert [p.p(token) for token in range(-1, 8)] == [0, *spread(p, 6), 0, 0]


def test_distributions_of_different_widths_can_be_compared() -> None:
    narrow, wide = Categorical(np.array([0.5, 0.5])), Categorical(np.array([0.25, 0.25, 0.5]))
    assert narrow.excess(wide).tolist() == [0.25, 0.25]
    assert wide.excess(narrow).tolist() == [0, 0, 0.5]
    assert narrow.excess(Categorical.one_hot(2)).tolist() == [0.5, 0.5]


def test_the_residual_of_two_equal_distributions_is_the_distribution() -> None:
    even = Categorical(np.array([0.5, 0.5]))
    assert even.residual(even) is even


@given(tokens, st.lists(st.integers(-3, 9), max_size=30))
def test_a_history_counts_and_forgets(prompt: list[int], steps: list[int]) -> None:
    history, output = History(prompt), list[int]()
    for step in steps:
        if step >= 0:
            history.push(step)
            output.append(step)
        elif len(output) >= -step:
            history.pop(-step)
            del output[step:]
    assert history.output == output
    counts = dict(zip(history.seen.tolist(), history.produced.tolist(), strict=True))
    assert counts == {token: output.count(token) for token in prompt + output}


def test_a_history_has_room_for_every_token() -> None:
    history = History(range(10))
    for token in range(5000):
        history.push(token)
    assert history.seen.size == 5000 and history.produced.sum() == 5000
    history.pop(5000)
    assert sorted(history.seen.tolist()) == list(range(10))
