"""Whatever is drafted, the answer is the target's: its tokens when greedy, its distribution when sampled."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.speculation import PROMPT, Remembering, Verify, add, drawn, near, table
from support.speculation_cases import PROPOSERS, SETTINGS, TARGET, VERIFIERS, VOCAB, fit, largest_error

from specdec_onnx.runtime.drafting.proposer import Proposal
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import Categorical, Chance, History, Sampler
from specdec_onnx.runtime.sampling.verification import Greedy, Verdict, verify_sampled


def verify_greedy(
    rows: NDArray[np.float32], tokens: list[int], sampler: Sampler, history: History
) -> Verdict:
    return Greedy(sampler, history).verify(rows, Proposal(tokens))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_every_path_adds_up_to_the_targets_own_distribution(
    setting: str, proposer: str, verifier: str
) -> None:
    assert largest_error(SETTINGS[setting], PROPOSERS[proposer], VERIFIERS[verifier]) < 1e-12


@pytest.mark.parametrize("setting", SETTINGS)
def test_answers_fit_the_target_whatever_drafts_and_verifies(setting: str) -> None:
    assert fit(SETTINGS[setting]) > 1e-3


def test_answers_of_several_rounds_fit_the_target() -> None:
    assert fit(SETTINGS["all"], length=3, rounds=3) > 1e-3


def kept(verify: Verify, seed: int, vocab: int = 30) -> float:
    """The mean number of kept tokens out of four drawn ones."""
    model = table(seed, vocab)
    sampler, chance = Remembering(Parameters(temperature=1.0), vocab), Chance(seed)
    propose = drawn(near(model, seed + 1, vocab), sampler, 4)
    total = 0
    for _ in range(1500):
        proposal = propose(PROMPT, History(PROMPT), chance)
        total += verify(
            model[[PROMPT[-1], *proposal.tokens]], proposal, sampler, History(PROMPT), chance
        ).accepted
    return total / 1500


def test_block_verification_keeps_more() -> None:
    gains = [kept(VERIFIERS["by block"], seed) / kept(VERIFIERS["by token"], seed) for seed in range(3)]
    assert np.mean(gains) > 1.03


def test_greedy_keeps_the_longest_prefix_and_corrects() -> None:
    sampler, history = Sampler(Parameters(), VOCAB), History(PROMPT)
    chain = [1]
    for _ in range(4):
        chain.append(int(TARGET[chain[-1]].argmax()))
    rows = TARGET[chain]
    assert verify_greedy(rows, chain[1:], sampler, history) == (4, int(TARGET[chain[-1]].argmax()))
    wrong = (chain[3] + 1) % VOCAB
    assert verify_greedy(rows, [*chain[1:3], wrong, 0], sampler, history) == (2, chain[3])
    assert verify_greedy(rows[:1], [], sampler, history) == (0, chain[1])
    assert history.output == []


def test_greedy_penalties_see_the_draft() -> None:
    rows = np.array([[0.0, 3.0, 0.0], [0.0, 3.0, 2.0], [1.0, 3.0, 2.0]], np.float32)
    sampler = Sampler(Parameters(repetition_penalty=2.0), 3)
    assert verify_greedy(rows, [1, 2], sampler, History()) == (2, 1)
    assert verify_greedy(rows, [1, 1], sampler, History()) == (1, 2)


class Counting(Sampler):
    """Counts the rows that are read."""

    reads = 0

    def distribution(self, logits: Any, history: History) -> Categorical:
        self.reads += 1
        return super().distribution(logits, history)


def test_no_row_behind_the_first_refusal_is_read() -> None:
    rows = np.zeros((5, 3), np.float32)
    rows[1, 2] = -np.inf
    sampler = Counting(Parameters(temperature=1.0, top_k=2), 3)
    rows[:, 0] = rows[0, 1] = 50
    proposal = Proposal([0, 2, 0, 0], [0.5] * 4, ["suffix"] * 4)
    while verify_sampled(rows, proposal, sampler, History(), Chance(3)).accepted == 0:
        sampler.reads = 0
    assert sampler.reads == 2
    sampler.reads, proposal = 0, Proposal(distributions=[])
    for token in (0, 2, 0, 0):
        add(proposal, token, Categorical(np.full(3, 1 / 3)))
    verify_sampled(rows, proposal, sampler, History(), Chance(3))
    assert sampler.reads == 2  # the second token is ruled out, so the block ends there


def test_the_history_comes_back_unchanged_when_a_row_is_not_a_number() -> None:
    rows = np.array([[0, 9], [np.nan, np.nan]], np.float32)
    history = History([0])
    with pytest.raises(Exception, match="not a number"):
        verify_greedy(rows, [1], Sampler(Parameters(), 2), history)
    assert history.output == []
