"""Speculative decoding over a table of logits: small enough to draw 20,000 answers, or to follow every path."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.runtime.drafting.proposer import Proposal
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import Categorical, Chance, History, Sampler
from specdec_onnx.runtime.sampling.verification import Verdict

Table = NDArray[np.float32]
Propose = Callable[[Sequence[int], History, Chance], Proposal]
Verify = Callable[[Table, Proposal, Sampler, History, Chance], Verdict]

PROMPT = (0, 1)


def table(seed: int, vocab: int, spread: float = 1.5) -> Table:
    """A model that sees one token back: row t holds the logits behind token t, [vocab, vocab]."""
    return (spread * np.random.default_rng(seed).standard_normal((vocab, vocab))).astype(np.float32)


def near(model: Table, seed: int, vocab: int) -> Table:
    """A draft model that mostly agrees with `model`."""
    return model + table(seed, vocab, 0.8)


class Remembering(Sampler):
    """The real sampler, asked once per row and history: 20,000 draws meet the same few contexts again."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._known: dict[tuple[bytes, tuple[int, ...]], Categorical] = {}

    def distribution(self, logits: NDArray[np.float32], history: History) -> Categorical:
        key = (logits.tobytes(), tuple(history.output) if self.parameters.penalised else ())
        if key not in self._known:
            self._known[key] = super().distribution(logits, history)
        return self._known[key]


def drawn(draft: Table, sampler: Sampler, length: int) -> Propose:
    """A draft model that draws `length` tokens, each from its own distribution."""

    def propose(context: Sequence[int], history: History, chance: Chance) -> Proposal:
        proposal = Proposal(distributions=[])
        last = context[-1]
        for _ in range(length):
            q = sampler.distribution(draft[last], history)
            last = chance.draw(q)
            history.push(last)
            add(proposal, last, q)
        history.pop(length)
        return proposal

    return propose


def fixed(length: int, vocab: int) -> Propose:
    """A deterministic proposer: counts up from the last token."""

    def propose(context: Sequence[int], history: History, chance: Chance) -> Proposal:
        tokens = [(context[-1] + step) % vocab for step in range(1, length + 1)]
        return Proposal(tokens, [0.5] * length, ["suffix"] * length)

    return propose


def chained(first: Propose, second: Propose) -> Propose:
    """One proposer continued by another."""

    def propose(context: Sequence[int], history: History, chance: Chance) -> Proposal:
        head = first(context, history, chance)
        for token in head.tokens:
            history.push(token)
        tail = second([*context, *head.tokens], history, chance)
        history.pop(len(head))
        return head.then(tail)

    return propose


def add(proposal: Proposal, token: int, q: Categorical) -> None:
    """Append one drawn token."""
    proposal.tokens.append(token)
    proposal.confidence.append(q.p(token))
    proposal.sources.append("draft")
    assert proposal.distributions is not None
    proposal.distributions.append(q)


def one_round(
    model: Table, sampler: Sampler, propose: Propose, verify: Verify, chance: Chance, history: History
) -> None:
    """Draft, verify, and push what comes out onto the history of an answer to PROMPT."""
    context = [*PROMPT, *history.output]
    proposal = propose(context, history, chance)
    verdict = verify(model[[context[-1], *proposal.tokens]], proposal, sampler, history, chance)
    for token in [*proposal.tokens[: verdict.accepted], verdict.token]:
        history.push(token)


def answer(
    model: Table,
    sampler: Sampler,
    propose: Propose,
    verify: Verify,
    chance: Chance,
    length: int,
    rounds: int = 1,
) -> tuple[int, ...]:
    """The first `length` tokens of an answer: speculative rounds, then plain steps."""
    history = History(PROMPT)
    while len(history.output) < length:
        if rounds > 0:
            one_round(model, sampler, propose, verify, chance, history)
        else:
            history.push(chance.draw(sampler.distribution(model[history.output[-1]], history)))
        rounds -= 1
    return tuple(history.output[:length])


def target_joint(model: Table, parameters: Parameters, length: int) -> dict[tuple[int, ...], float]:
    """The target's own distribution over all answers of `length` tokens, step by step from its logits."""
    joint = {}
    sampler, vocab = Sampler(parameters, len(model)), len(model)
    for tokens in product(range(vocab), repeat=length):
        history, last, share = History(PROMPT), PROMPT[-1], 1.0
        for token in tokens:
            share *= sampler.distribution(model[last], history).p(token) if share else 0.0
            history.push(token)
            last = token
        joint[tokens] = share
    return joint
