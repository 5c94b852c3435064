"""Sampling under a seed: the target's distribution, and the same text whatever is drafted."""

from collections import Counter
from collections.abc import Sequence

import pytest
from support.chi_square import p_value
from support.speculation import PROMPT, Remembering, target_joint
from support.speculation_cases import DRAFT, DRAWS, SETTINGS, TARGET, VOCAB

from specdec_onnx.runtime.acceptance import verify_coupled
from specdec_onnx.runtime.coupling import Noise
from specdec_onnx.runtime.history import History
from specdec_onnx.runtime.sampling import Sampler


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
        verdict = verify_coupled(TARGET[chain], chain[1:], sampler, history, noise, len(history.output))
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
