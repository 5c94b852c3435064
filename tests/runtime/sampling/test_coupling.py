"""Sampling under a seed: the target's distribution, and the same text whatever is drafted."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.chi_square import p_value
from support.speculation import PROMPT, Remembering, target_joint
from support.speculation_cases import DRAFT, DRAWS, SETTINGS, TARGET, VOCAB

from specdec_onnx.runtime.drafting.proposer import Proposal
from specdec_onnx.runtime.sampling.coupling import Noise
from specdec_onnx.runtime.sampling.sampler import Categorical, History, Sampler
from specdec_onnx.runtime.sampling.verification import Coupled


def coupled_answer(seed: int, sampler: Sampler, length: int, drafted: int) -> tuple[int, ...]:
    """An answer under a seed, with a draft model that picks with the same noise."""
    noise, history = Noise(seed), History(PROMPT)
    while len(history.output) < length:
        chain = [(*PROMPT, *history.output)[-1]]
        for _ in range(drafted):
            q = sampler.distribution(DRAFT[chain[-1]], history)
            chain.append(noise.pick(q, len(history.output)))
            history.push(chain[-1])
        history.pop(drafted)
        verdict = Coupled(sampler, history, noise).verify(TARGET[chain], Proposal(chain[1:]))
        for token in [*chain[1 : 1 + verdict.accepted], verdict.token]:
            history.push(token)
    return tuple(history.output[:length])


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_coupled_answer_ignores_the_draft(setting: str) -> None:
    sampler = Remembering(SETTINGS[setting], VOCAB)
    plain = [coupled_answer(seed, sampler, 5, 0) for seed in range(100)]
    assert plain == [coupled_answer(seed, sampler, 5, 3) for seed in range(100)]
    assert len(set(plain)) > 10


def picks(draws: int, positions: Sequence[int]) -> float:
    """The p-value of two tokens picked with the noise of two positions, over many seeds."""
    sampler, counts = Remembering(SETTINGS["all"], VOCAB), Counter[tuple[int, ...]]()
    for seed in range(draws):
        noise, history = Noise(seed), History(PROMPT)
        for last, position in zip((PROMPT[-1], None), positions, strict=True):
            row = TARGET[history.output[-1] if last is None else last]
            history.push(noise.pick(sampler.distribution(row, history), position))
        counts[tuple(history.output)] += 1
    return p_value(counts, target_joint(TARGET, SETTINGS["all"], 2))


def test_coupled_answers_fit_the_target() -> None:
    assert picks(DRAWS, (0, 1)) > 1e-3
    assert picks(DRAWS // 4, (0, 0)) < 1e-6  # what a noise that forgets the position would give


def test_a_long_tail_is_picked_by_its_mass() -> None:
    tail, head = np.full(4000, 0.3 / 4000), np.array([0.4, 0.2, 0.1])
    dense = Categorical(np.concatenate([tail[:2000], head, tail[2000:]]))
    sparse = Categorical(dense.probs, np.arange(dense.probs.size))
    cells = Counter[tuple[str, int]]()
    for seed in range(4000):
        token = Noise(seed).pick(dense, 5)
        assert Noise(seed).pick(sparse, 5) == token
        is_head = 2000 <= token < 2003
        cells["head" if is_head else "tail", token if is_head else token // 501] += 1
    expected: dict[Any, float] = {("head", 2000 + place): share for place, share in enumerate(head)}
    for token in (*range(2000), *range(2003, 4003)):
        key = ("tail", token // 501)
        expected[key] = expected.get(key, 0) + 0.3 / 4000
    assert p_value(cells, expected) > 1e-3


def test_a_draft_is_kept_as_often_as_the_coupling_promises() -> None:
    p, q = softmax(TARGET[0]), softmax(DRAFT[0])
    distance = abs(p - q).sum() / 2
    noises = [Noise(seed) for seed in range(4000)]
    kept = np.mean([noise.pick(Categorical(p), 0) == noise.pick(Categorical(q), 0) for noise in noises])
    assert (1 - distance) / (1 + distance) - 0.02 < kept <= 1 - distance + 0.02


def softmax(logits: Any) -> Any:
    weights = np.exp(logits - logits.max(), dtype=np.float64)
    return weights / weights.sum()
