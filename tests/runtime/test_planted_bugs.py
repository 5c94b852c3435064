"""The two tests of exactness, following every path and chi-square over draws, both find a bug when there is one."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import pytest
from support.chi_square import p_value, upper_gamma
from support.speculation import (
    Propose,
    drawn,
)
from support.speculation_cases import (
    DRAFT,
    DRAWS,
    PROPOSERS,
    SETTINGS,
    VERIFIERS,
    VOCAB,
    fit,
    largest_error,
)

from specdec_onnx.runtime.drafting.proposer import Proposal
from specdec_onnx.runtime.sampling import verification as acceptance
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import Chance, History, Sampler

BUGS = {
    "accepts with q / p": ("p.p(token) / q.p(token)", "q.p(token) / max(p.p(token), 1e-9)"),
    "resamples from p": ("chance.draw(p.residual(q))", "chance.draw(p)"),
    "resamples from p in a block": ("chance.draw(p.reweighted(excess))", "chance.draw(p)"),
    "judges a block token by token": ("left / (left + 1 - kept[place])", "kept[place]"),
    "rows don't see the draft": ("history.push(token)", "None"),
    "bonus from the row before": ("rows[len(proposal)]", "rows[len(proposal) - 1]"),
}


def planted(bug: str) -> ModuleType:
    """The module under test with one bug written into its source."""
    right, wrong = BUGS[bug]
    source = inspect.getsource(acceptance)
    assert right in source
    module = ModuleType("planted")
    exec(compile(source.replace(right, wrong), "planted", "exec"), module.__dict__)  # noqa: S102
    return module


@pytest.mark.parametrize("bug", BUGS)
def test_both_tests_find_a_planted_bug(bug: str) -> None:
    by_token = bug == "resamples from p"
    verify = partial(planted(bug).verify_sampled, block=not by_token)
    assert largest_error(SETTINGS["repetition"], PROPOSERS["drawn"], verify) > 1e-3
    assert fit(SETTINGS["repetition"], [(PROPOSERS["drawn"], verify)], DRAWS // 4, length=3) < 1e-6


def mislabelled(sampler: Sampler) -> Propose:
    """A draft model that says it drew at the sampler's temperature and drew at 1."""

    def propose(context: Sequence[int], history: History, chance: Chance) -> Proposal:
        proposal = drawn(DRAFT, Sampler(Parameters(temperature=1.0), VOCAB), 1)(context, history, chance)
        proposal.distributions = [sampler.distribution(DRAFT[context[-1]], history)]
        return proposal

    return propose


def second_thoughts(sampler: Sampler) -> Propose:
    """A proposer that takes a drawn token back when it turns out to be an unlikely one."""

    def propose(context: Sequence[int], history: History, chance: Chance) -> Proposal:
        proposal = drawn(DRAFT, sampler, 1)(context, history, chance)
        return proposal if proposal.confidence[0] > 0.3 else Proposal()

    return propose


@pytest.mark.parametrize("proposer", [mislabelled, second_thoughts])
def test_both_tests_find_a_biased_proposer(proposer: Callable[[Sampler], Propose]) -> None:
    verify = VERIFIERS["by token"]
    assert largest_error(SETTINGS["hot"], proposer, verify) > 1e-3
    assert fit(SETTINGS["hot"], [(proposer, verify)], DRAWS // 4) < 1e-6


def test_the_p_value_is_right() -> None:
    assert upper_gamma(0.5, 3.841459 / 2) == pytest.approx(0.05, rel=1e-5)
    assert upper_gamma(31.5, 82.529 / 2) == pytest.approx(0.05, rel=1e-3)
    assert p_value({"a": 10}, {"b": 1.0}) == 0.0
