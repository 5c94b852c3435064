"""Logits to distributions, against a slow and plain reading of the same steps."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import Categorical, History, Sampler, nucleus, top_k

EDGE = 1e-5
"""Cuts closer than this to a token's share are left out: float32 may fall on either side."""


def reference(
    logits: list[float], parameters: Parameters, prompt: list[int], output: list[int]
) -> dict[int, float]:
    """The documented steps, one token at a time, in float64."""
    scores, factor = {}, parameters.repetition_penalty
    for token, score in enumerate(logits):
        if token in prompt + output:
            score = score / factor if score > 0 else score * factor
        score -= parameters.frequency_penalty * output.count(token)
        score -= parameters.presence_penalty * (token in output)
        scores[token] = score + parameters.logit_bias.get(token, 0.0)
    peak = max(scores.values())
    weights = {token: math.exp((score - peak) / parameters.temperature) for token, score in scores.items()}
    if parameters.top_k:
        ranked = sorted(weights.values(), reverse=True)
        weights = at_least(weights, ranked[: parameters.top_k][-1])
    if parameters.top_p < 1:
        weights = at_least(weights, nucleus_edge(weights, parameters.top_p))
    weights = at_least(weights, parameters.min_p * max(weights.values()))
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items() if weight > 0}


def at_least(weights: dict[int, float], floor: float) -> dict[int, float]:
    """Scores that are equal but for rounding are left to the tests of ties, which make them without rounding."""
    assume(floor == 0 or sum(abs(weight - floor) <= EDGE for weight in weights.values()) <= 1)
    return {token: weight for token, weight in weights.items() if weight >= floor}


def nucleus_edge(weights: dict[int, float], mass: float) -> float:
    reached, wanted = 0.0, mass * sum(weights.values())
    for weight in sorted(weights.values(), reverse=True):
        reached += weight
        assume(abs(reached - wanted) > EDGE)
        if reached >= wanted:
            break
    return weight


def dense(categorical: Categorical, size: int) -> NDArray[np.float64]:
    return categorical.at(np.arange(size))


scores = st.lists(st.integers(-12, 12).map(lambda step: step / 4), min_size=2, max_size=9)
parameters = st.builds(
    Parameters,
    temperature=st.sampled_from([0.3, 0.8, 1.0, 2.0]),
    top_k=st.integers(0, 10),
    top_p=st.sampled_from([0.3, 0.7, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.6, -0.3]),
    frequency_penalty=st.sampled_from([0.0, 0.45]),
    logit_bias=st.dictionaries(st.integers(0, 1), st.sampled_from([-1.0, 2.5, -math.inf]), max_size=1),
)
tokens = st.lists(st.integers(0, 8), max_size=6)


@settings(max_examples=400, deadline=None)
@given(scores, parameters, tokens, tokens)
def test_a_distribution_follows_the_documented_steps(
    logits: list[float], setting: Parameters, prompt: list[int], output: list[int]
) -> None:
    history = History(prompt)
    for token in output:
        history.push(token)
    expected = reference(logits, setting, prompt, output)
    found = Sampler(setting, len(logits)).distribution(np.array(logits, np.float32), history)
    wanted = np.array([expected.get(token, 0.0) for token in range(len(logits))])
    np.testing.assert_allclose(dense(found, len(logits)), wanted, atol=2e-6)
    assert found.probs.sum() == pytest.approx(1.0, abs=1e-12)
    best = Sampler(setting, len(logits)).argmax(np.array(logits, np.float32), history)
    assert wanted[best] == wanted.max()


@settings(max_examples=100, deadline=None)
@given(parameters, tokens, tokens, st.integers(0, 5))
def test_trimmed_columns_give_the_same_as_full_ones_with_the_rest_banned(
    setting: Parameters, prompt: list[int], output: list[int], seed: int
) -> None:
    ids, history = np.array([0, 1, 3, 4, 8, 12]), History(prompt)
    for token in output:
        history.push(token)
    full = np.full(14, -math.inf, np.float32)
    full[ids] = np.random.default_rng(seed).standard_normal(ids.size)
    trimmed = Sampler(setting, 14, ids)
    whole = Sampler(setting, 14).distribution(full, history)
    np.testing.assert_allclose(
        dense(trimmed.distribution(full[ids], history), 14), dense(whole, 14), atol=1e-6
    )
    assert trimmed.argmax(full[ids], history) == Sampler(setting, 14).argmax(full, history)


@given(st.integers(1, 4000), st.integers(1, 80), st.integers(1, 3000), st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_top_k_keeps_the_k_largest_and_their_equals(size: int, k: int, values: int, seed: int) -> None:
    k = min(k, size)
    drawn = np.random.default_rng(seed).integers(0, values, size).astype(np.float32)
    floor = np.sort(drawn)[-k]
    np.testing.assert_array_equal(top_k(drawn, k), np.flatnonzero(drawn >= floor))


@given(st.integers(1, 300), st.sampled_from([0.01, 0.5, 0.95, 0.999]), st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_the_nucleus_is_the_smallest_set_that_reaches_the_mass(size: int, mass: float, seed: int) -> None:
    weights = np.exp(3 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)
    kept = weights[nucleus(weights, mass)].astype(np.float64)
    assert kept.sum() >= mass * weights.sum() * (1 - 1e-6)
    assert kept.sum() - kept.min() <= mass * weights.sum() * (1 + 1e-6)
    assert kept.min() >= np.delete(weights, nucleus(weights, mass)).max(initial=0)


def test_padding_is_never_looked_at() -> None:
    logits = np.array([1.0, 2.0, 9.0, 9.0], np.float32)
    assert Sampler(Parameters(), 2).argmax(logits, History()) == 1
    assert Sampler(Parameters(temperature=1.0), 2).distribution(logits, History()).probs.size == 2
    ids = np.array([0, 5, 6, 9])
    assert Sampler(Parameters(), 6, ids).argmax(logits, History()) == 5


def test_the_logits_are_left_as_they_are() -> None:
    logits = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    before = logits.copy()
    history = History([3, 4])
    for setting in (
        Parameters(temperature=0.5, top_p=0.9),
        Parameters(temperature=0.5, repetition_penalty=2.0, logit_bias={7: 1.0}),
    ):
        sampler = Sampler(setting, 300)
        first = sampler.distribution(logits, history)
        kept = first.probs.copy()
        sampler.distribution(logits * 2, history)
        sampler.best(logits, history)
        np.testing.assert_array_equal(first.probs, kept)  # no view of the sampler's own memory
    np.testing.assert_array_equal(logits, before)


def test_greedy_is_one_hot_and_its_confidence_is_the_softmax() -> None:
    logits = np.array([0.0, 2.0, 2.0, 1.0], np.float32)
    greedy = Sampler(Parameters(), 4).distribution(logits, History())
    assert (greedy.probs.tolist(), greedy.token_ids.tolist()) == ([1.0], [1])
    token, confidence = Sampler(Parameters(), 4).best(logits, History())
    assert (token, confidence) == (1, pytest.approx(math.exp(2) / np.exp(logits, dtype=np.float64).sum()))


def test_half_precision_logits_and_tiny_temperatures_work() -> None:
    logits = np.array([0.5, 2.0, 1.0], np.float16)
    full = Sampler(Parameters(temperature=0.7), 3).distribution(logits.astype(np.float32), History())
    half = Sampler(Parameters(temperature=0.7), 3).distribution(logits, History())  # type: ignore[arg-type]
    np.testing.assert_array_equal(full.probs, half.probs)
    for temperature in (1e-6, 5e-324):
        cold = Sampler(Parameters(temperature=temperature), 3).distribution(logits, History())  # type: ignore[arg-type]
        assert cold.probs.tolist() == [0, 1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_are_refused(temperature: float) -> None:
    for logits in ([math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]):
        with pytest.raises(SpecdecError, match="not a number"):
            Sampler(Parameters(temperature=temperature), 2).distribution(
                np.array(logits, np.float32), History()
            )
