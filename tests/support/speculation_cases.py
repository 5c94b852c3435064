"""Every sampler setting, every kind of draft and every way to verify, on models of four tokens."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice, product

import numpy as np
from support.chi_square import p_value
from support.paths import round_joint
from support.speculation import (
    Propose,
    Remembering,
    Verify,
    answer,
    chained,
    drawn,
    fixed,
    near,
    table,
    target_joint,
)

from specdec_onnx.runtime.drafting.proposer import Proposal
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import Chance, History, Sampler
from specdec_onnx.runtime.sampling.verification import verify_sampled

DRAWS = 20_000
VOCAB = 4
TARGET = table(1, VOCAB)
DRAFT = near(TARGET, 2, VOCAB)

SETTINGS = {
    "temperature": Parameters(temperature=0.7),
    "hot": Parameters(temperature=1.6),
    "top-k": Parameters(temperature=1.0, top_k=2),
    "top-p": Parameters(temperature=0.9, top_p=0.8),
    "min-p": Parameters(temperature=1.0, min_p=0.25),
    "repetition": Parameters(temperature=1.0, repetition_penalty=1.6),
    "presence and frequency": Parameters(temperature=1.0, presence_penalty=0.7, frequency_penalty=0.6),
    "bias": Parameters(temperature=1.0, logit_bias={0: 1.5, 2: -float("inf")}),
    "all": Parameters(
        temperature=1.2, top_k=3, top_p=0.95, min_p=0.05, repetition_penalty=1.3, frequency_penalty=0.4,
        presence_penalty=0.2, logit_bias={1: 0.5},
    ),
}  # fmt: skip
PROPOSERS: dict[str, Callable[[Sampler], Propose]] = {
    "nothing": lambda _: fixed(0, VOCAB),
    "deterministic": lambda _: fixed(2, VOCAB),
    "drawn": lambda sampler: drawn(DRAFT, sampler, 2),
    "drawn from a trimmed vocabulary": lambda sampler: trimmed(sampler),
    "suffix then draft": lambda sampler: chained(fixed(1, VOCAB), drawn(DRAFT, sampler, 1)),
    "draft then suffix": lambda sampler: chained(drawn(DRAFT, sampler, 1), fixed(1, VOCAB)),
    "stops by what it drew": lambda sampler: stopping(sampler),
}
VERIFIERS: dict[str, Verify] = {
    "by token": partial(verify_sampled, block=False),
    "by block": partial(verify_sampled, block=True),
}


def trimmed(sampler: Sampler) -> Propose:
    """A draft model that has no column for token 1."""
    ids = np.array([0, 2, 3])
    return drawn(DRAFT[:, ids], Remembering(sampler.parameters, VOCAB, ids), 2)


def stopping(sampler: Sampler) -> Propose:
    """Drafts a second token only behind an even first one: the length depends on the draft."""

    def propose(context: Sequence[int], history: History, chance: Chance) -> Proposal:
        first = drawn(DRAFT, sampler, 1)
        head = first(context, history, chance)
        return chained(lambda *_: head, first)(context, history, chance) if head.tokens[0] % 2 == 0 else head

    return propose


def largest_error(parameters: Parameters, proposer: Callable[[Sampler], Propose], verify: Verify) -> float:
    """How far the first three tokens' distribution is from the target's, with every path of every coin followed."""
    sampler, target = Remembering(parameters, VOCAB), target_joint(TARGET, parameters, 3)
    joint = round_joint(TARGET, sampler, proposer(sampler), verify, 3)
    return max(abs(joint[tokens] - share) for tokens, share in target.items())


Ways = Sequence[tuple[Callable[[Sampler], Propose], Verify]]
WAYS = list(product(PROPOSERS.values(), VERIFIERS.values()))


def fit(
    parameters: Parameters, ways: Ways = WAYS, draws: int = DRAWS, length: int = 2, rounds: int = 1
) -> float:
    """The chi-square p-value of the first tokens; the ways to speculate take turns over the answers."""
    sampler, chance = Remembering(parameters, VOCAB), Chance(1)
    turns = islice(cycle([(proposer(sampler), verify) for proposer, verify in ways]), draws)
    counts = Counter(answer(TARGET, sampler, *way, chance, length, rounds) for way in turns)
    return p_value(counts, target_joint(TARGET, parameters, length))
