"""How an answer's tokens are chosen: one rule for what the draft writes and what the target keeps.

Greedy takes the likeliest token. Sampling with a seed couples draft and target through noise per position, so the
text is the same with any draft or none. Sampling without one uses rejection sampling, which keeps the most drafts.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.drafting.proposer import Proposal
from specdec_onnx.runtime.sampling.coupling import Noise
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import Categorical, Chance, History, Sampler

Rows = NDArray[np.float32]


class Verdict(NamedTuple):
    """How many drafted tokens are kept, and the target's own token behind them (a correction, or a bonus)."""

    accepted: int
    token: int


def verify_greedy(rows: Rows, tokens: Sequence[int], sampler: Sampler, history: History) -> Verdict:
    """Keep the tokens up to the first that isn't the likeliest one; rows behind it are never read."""
    return _match(rows, tokens, history, lambda row, _: sampler.argmax(row, history))


def verify_coupled(
    rows: Rows, tokens: Sequence[int], sampler: Sampler, history: History, noise: Noise, position: int
) -> Verdict:
    """Keep the tokens up to the first that isn't what the noise picks; `position` is the first token's in the answer.

    The answer is a function of the seed, whatever was drafted (see `coupling`); any rule may choose the drafts.
    """

    def choose(row: NDArray[np.float32], ahead: int) -> int:
        return noise.pick(sampler.distribution(row, history), position + ahead)

    return _match(rows, tokens, history, choose)


def verify_sampled(
    rows: Rows, proposal: Proposal, sampler: Sampler, history: History, chance: Chance, *, block: bool = True
) -> Verdict:
    """Lossless rejection sampling; with `block` and a drawn draft, block verification, which keeps no fewer tokens."""
    verify = _verify_block if block and proposal.distributions else _verify_tokens
    pushed = len(history.output)
    try:
        return verify(rows, proposal, sampler, history, chance)
    finally:
        history.pop(len(history.output) - pushed)


def _match(
    rows: Rows, tokens: Sequence[int], history: History, choose: Callable[[NDArray[np.float32], int], int]
) -> Verdict:
    kept = 0
    try:
        said = choose(rows[0], 0)
        while kept < len(tokens) and said == tokens[kept]:
            history.push(said)
            kept += 1
            said = choose(rows[kept], kept)
        return Verdict(kept, said)
    finally:
        history.pop(kept)


def _verify_tokens(
    rows: Rows, proposal: Proposal, sampler: Sampler, history: History, chance: Chance
) -> Verdict:
    """Leviathan et al. 2023, arXiv 2211.17192: keep x with min(1, p(x) / q(x)), else draw from max(p - q, 0).

    A deterministic token is the case where q is one-hot. Rows behind the first refusal are never read.
    """
    for place, (token, q) in enumerate(zip(proposal.tokens, proposal.known_distributions(), strict=True)):
        p = sampler.distribution(rows[place], history)
        if not chance.flip(p.p(token) / q.p(token)):
            return Verdict(place, chance.draw(p.residual(q)))
        history.push(token)
    return Verdict(len(proposal), chance.draw(sampler.distribution(rows[len(proposal)], history)))


def _verify_block(
    rows: Rows, proposal: Proposal, sampler: Sampler, history: History, chance: Chance
) -> Verdict:
    """Sun et al. 2024, arXiv 2403.10444: judge whole prefixes of the draft, the longest first.

    `kept[i]` is the probability that at least i tokens are kept, given the first i. It needs the distribution of every
    row up to the last (or up to a token that the target rules out). Where the draft ends may depend on its tokens,
    one-hot distributions may stand among drawn ones: the induction over the tree of drafts holds for both.
    """
    distributions, kept = [], [1.0]
    qs = proposal.known_distributions()
    for token, q, row in zip(proposal.tokens, qs, rows, strict=False):
        p = sampler.distribution(row, history)
        distributions.append(p)
        kept.append(min(kept[-1] * p.p(token) / q.p(token), 1.0))
        if not kept[-1]:
            break
        history.push(token)
    if chance.flip(kept[-1]):
        return Verdict(len(proposal), chance.draw(sampler.distribution(rows[len(proposal)], history)))
    return _longest_prefix(distributions, qs, kept, chance)


def _longest_prefix(
    distributions: Sequence[Categorical], qs: Sequence[Categorical], kept: Sequence[float], chance: Chance
) -> Verdict:
    place = len(distributions) - 1
    while True:
        p = distributions[place]
        excess = p.excess(qs[place], kept[place])
        left = float(excess.sum())
        if place == 0 or (left and chance.flip(left / (left + 1 - kept[place]))):
            return Verdict(place, chance.draw(p.reweighted(excess)))
        place -= 1


class Rule(Protocol):
    """What every rule can do; `history` holds the tokens before the next one."""

    history: History

    def expect(self, row: NDArray[np.float32], draft: Sampler) -> tuple[int | Categorical, float]:
        """From a draft's logits [T]: the next token, or what it is to be drawn from, and the belief in it."""
        ...

    def draw(self, categorical: Categorical) -> int:
        """Draw a drafted token."""
        ...

    def verify(self, rows: NDArray[np.float32], proposal: Proposal) -> Verdict:
        """What the target keeps of a proposal, given its logits [k+1, V]."""
        ...


class _Base:
    def __init__(self, target: Sampler, history: History) -> None:
        self._target, self.history = target, history

    def draw(self, categorical: Categorical) -> int:
        raise TypeError("this rule settles every token itself")


class Greedy(_Base):
    """The likeliest token, always."""

    def expect(self, row: NDArray[np.float32], draft: Sampler) -> tuple[int | Categorical, float]:
        return draft.best(row, self.history)

    def verify(self, rows: NDArray[np.float32], proposal: Proposal) -> Verdict:
        return verify_greedy(rows, proposal.tokens, self._target, self.history)


class Coupled(_Base):
    """The token that the seed's noise picks at this position of the answer."""

    def __init__(self, target: Sampler, history: History, noise: Noise) -> None:
        super().__init__(target, history)
        self._noise = noise

    def expect(self, row: NDArray[np.float32], draft: Sampler) -> tuple[int | Categorical, float]:
        q = draft.distribution(row, self.history)
        token = self._noise.pick(q, len(self.history.output))
        return token, q.p(token)

    def verify(self, rows: NDArray[np.float32], proposal: Proposal) -> Verdict:
        position = len(self.history.output)
        return verify_coupled(rows, proposal.tokens, self._target, self.history, self._noise, position)


class Rejection(_Base):
    """Drafts are drawn from the draft's own distribution; the target keeps as many as losslessness allows."""

    def __init__(self, target: Sampler, history: History, chance: Chance) -> None:
        super().__init__(target, history)
        self._chance = chance

    def expect(self, row: NDArray[np.float32], draft: Sampler) -> tuple[int | Categorical, float]:
        q = draft.distribution(row, self.history)
        return q, float(q.probs.max())

    def draw(self, categorical: Categorical) -> int:
        return self._chance.draw(categorical)

    def verify(self, rows: NDArray[np.float32], proposal: Proposal) -> Verdict:
        return verify_sampled(rows, proposal, self._target, self.history, self._chance)


def make_rule(parameters: Parameters, vocab_size: int, prompt: list[int]) -> Rule:
    """The rule that `parameters` ask for, over the first `vocab_size` token ids, behind `prompt`."""
    target, history = Sampler(parameters, vocab_size), History(prompt)
    if parameters.greedy:
        return Greedy(target, history)
    if parameters.seed is not None:
        return Coupled(target, history, Noise(parameters.seed))
    return Rejection(target, history, Chance())
