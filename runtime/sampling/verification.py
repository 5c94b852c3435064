"""How an answer's tokens are chosen: one rule for what is drafted and for what the target keeps of it.

Greedy takes the likeliest token. Sampling with a seed couples draft and target by noise for each position, so the text
is the same with any draft or none. Sampling without a seed uses rejection sampling, which keeps the most drafts.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.drafting.proposer import Proposal
from specdec_onnx.runtime.sampling.constraint import Guide, GuidedHistory
from specdec_onnx.runtime.sampling.coupling import Noise
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import Categorical, Chance, History, Processing, Sampler

Rows = NDArray[np.float32]


class Verdict(NamedTuple):
    """How many drafted tokens are kept, and the target's own token after them (a correction or a bonus)."""

    accepted: int
    token: int


def make_rule(
    parameters: Parameters,
    vocab_size: int,
    prompt: list[int],
    *,
    processing: Processing | None = None,
    guide: Guide | None = None,
) -> "Rule":
    """The rule that `parameters` define, over the first `vocab_size` token ids, for an answer to `prompt`."""
    target = Sampler(parameters, vocab_size, processing=processing)
    history = GuidedHistory(prompt, guide) if guide else History(prompt)
    if parameters.greedy:
        return Greedy(target, history)
    if parameters.seed is not None:
        return Coupled(target, history, Noise(parameters.seed))
    return Rejection(target, history, Chance())


class Rule:
    """How tokens are drafted and verified; `history` holds the tokens before the next one."""

    def __init__(self, target: Sampler, history: History) -> None:
        self._target, self.history = target, history

    def expect(self, row: Rows, draft: Sampler) -> tuple[int | Categorical, float]:
        """The next token, or the distribution to draw it from, and the belief, from a row of draft logits [T]."""
        raise NotImplementedError

    def draw(self, categorical: Categorical) -> int:
        """Draw a drafted token from what `expect` returned."""
        raise TypeError("this rule determines every token itself")

    def verify(self, rows: Rows, proposal: Proposal) -> Verdict:
        """What the target keeps of a proposal of k tokens, given its logits [k+1, V]."""
        raise NotImplementedError

    def _match(self, rows: Rows, tokens: Sequence[int], choose: Callable[[Rows], int]) -> Verdict:
        """Keep the tokens up to the first that is not what the target would `choose`."""
        history, kept = self.history, 0
        try:
            token = choose(rows[0])
            while kept < len(tokens) and token == tokens[kept]:
                history.push(token)
                kept += 1
                token = choose(rows[kept])
            return Verdict(kept, token)
        finally:
            history.pop(kept)


class Greedy(Rule):
    """Always the likeliest token."""

    def expect(self, row: Rows, draft: Sampler) -> tuple[int | Categorical, float]:
        return draft.best(row, self.history)

    def verify(self, rows: Rows, proposal: Proposal) -> Verdict:
        return self._match(rows, proposal.tokens, lambda row: self._target.argmax(row, self.history))


class Coupled(Rule):
    """The token that the seed's noise picks at this position: the answer depends on the seed, not on the drafts."""

    def __init__(self, target: Sampler, history: History, noise: Noise) -> None:
        super().__init__(target, history)
        self._noise = noise

    def expect(self, row: Rows, draft: Sampler) -> tuple[int | Categorical, float]:
        q = draft.distribution(row, self.history)
        token = self._noise.pick(q, len(self.history.output))
        return token, q.p(token)

    def verify(self, rows: Rows, proposal: Proposal) -> Verdict:
        def choose(row: Rows) -> int:
            return self._noise.pick(self._target.distribution(row, self.history), len(self.history.output))

        return self._match(rows, proposal.tokens, choose)


class Rejection(Rule):
    """Drafts are drawn from the draft model's own distribution; the target keeps as many as losslessness allows."""

    def __init__(self, target: Sampler, history: History, chance: Chance) -> None:
        super().__init__(target, history)
        self._chance = chance

    def expect(self, row: Rows, draft: Sampler) -> tuple[int | Categorical, float]:
        q = draft.distribution(row, self.history)
        return q, float(q.probs.max())

    def draw(self, categorical: Categorical) -> int:
        return self._chance.draw(categorical)

    def verify(self, rows: Rows, proposal: Proposal) -> Verdict:
        return verify_sampled(rows, proposal, self._target, self.history, self._chance)


def verify_sampled(
    rows: Rows, proposal: Proposal, sampler: Sampler, history: History, chance: Chance, *, block: bool = True
) -> Verdict:
    """Lossless rejection sampling; block verification if `block` and the draft was drawn: it keeps no fewer tokens."""
    verify = _verify_block if block and proposal.distributions else _verify_tokens
    pushed = len(history.output)
    try:
        return verify(rows, proposal, sampler, history, chance)
    finally:
        history.pop(len(history.output) - pushed)


def _verify_tokens(
    rows: Rows, proposal: Proposal, sampler: Sampler, history: History, chance: Chance
) -> Verdict:
    """Leviathan et al. 2023, arXiv 2211.17192: keep x with min(1, p(x) / q(x)), else draw from max(p - q, 0).

    A deterministic token is the case where q is one-hot. Rows after the first rejection are not read.
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
    one-hot distributions may be mixed with drawn ones: the induction over the tree of drafts holds for both.
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
