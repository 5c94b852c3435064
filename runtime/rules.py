"""How an answer's tokens are chosen: one rule for what the draft writes and what the target keeps.

Greedy takes the likeliest token. Sampling with a seed couples draft and target through noise per position, so the
text is the same with any draft or none. Sampling without one uses rejection sampling, which keeps the most drafts.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.acceptance import Verdict, verify_coupled, verify_greedy, verify_sampled
from specdec_onnx.runtime.categorical import Categorical, Chance
from specdec_onnx.runtime.coupling import Noise
from specdec_onnx.runtime.history import History
from specdec_onnx.runtime.proposer.base import Proposal
from specdec_onnx.runtime.sampling import Parameters, Sampler


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
