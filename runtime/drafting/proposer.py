"""What all proposers share: the proposal they make and the methods they have."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.sampling.sampler import Categorical

Worth = Callable[[float, int], bool]
"""worth(chance, k): whether a token that would be kept with `chance` pays for itself as the draft's k-th (from 1).

`chance` is the product of all confidences up to and including that token's.
"""


@dataclass(slots=True)
class Proposal:
    """A drafted chain of tokens, the chance of each given that all before it were kept, and who drafted it.

    `distributions` has for each token the q that it was drawn from (one-hot if it was not drawn); None means that the
    whole chain is deterministic.
    """

    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    distributions: list[Categorical] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, confidence: float, source: str, drawn_from: Categorical | None = None) -> None:
        """Append one token, and the distribution that it was drawn from, if it was."""
        if drawn_from is not None or self.distributions is not None:
            q = Categorical.one_hot(token) if drawn_from is None else drawn_from
            self.distributions = [*self.known_distributions(), q]
        self.tokens.append(token)
        self.confidence.append(confidence)
        self.sources.append(source)

    def cut(self, length: int) -> "Proposal":
        """The first `length` tokens. Exact for drawn tokens only if `length` does not depend on those cut off."""
        distributions = None if self.distributions is None else self.distributions[:length]
        return Proposal(self.tokens[:length], self.confidence[:length], self.sources[:length], distributions)

    def then(self, other: "Proposal") -> "Proposal":
        """This chain continued by another one that was drafted after it."""
        mixed = self.distributions is not None or other.distributions is not None
        return Proposal(
            self.tokens + other.tokens,
            self.confidence + other.confidence,
            self.sources + other.sources,
            self.known_distributions() + other.known_distributions() if mixed else None,
        )

    def known_distributions(self) -> list[Categorical]:
        """q of every token, one-hot for a deterministic chain."""
        return self.distributions or [Categorical.one_hot(token) for token in self.tokens]


class Proposer(Protocol):
    """Drafts tokens after a context (prompt and output so far) for the target to verify.

    Sampling stays exact only if a token that was *drawn* from its q is never withdrawn because of what it turned out to
    be: a proposer asks `worth` before it draws, about the q alone. Deterministic tokens may be judged freely.
    """

    name: str

    def propose(self, context: Sequence[int], limit: int, worth: Worth) -> Proposal:
        """Up to `limit` tokens to follow `context`, which need not continue the previous call's."""

    def observe(self, emitted: Sequence[int]) -> None:
        """Learn, once, from the tokens that the target emitted after the context of the last `propose`."""


class Custom:
    """The proposer of an application: what it returns is checked, and may be a list of token ids.

    Token ids need no rule to stay exact: the target judges each by itself, so a bad guess costs time only. A `Proposal`
    with `distributions` must have drawn each token from its q, by chance that nothing else depends on.
    """

    def __init__(self, proposer: Any, vocab_size: int) -> None:
        for method in ("propose", "observe"):
            if not callable(getattr(proposer, method, None)):
                raise SpecdecError(f"the proposer {proposer!r:.60} has no method {method}")
        self._proposer, self._vocab_size = proposer, vocab_size
        self.name = str(getattr(proposer, "name", "custom"))

    def propose(self, context: Sequence[int], limit: int, worth: Worth) -> Proposal:
        """What the application proposes, at most `limit` tokens."""
        proposal = self._proposer.propose(list(context), limit, worth)
        if not isinstance(proposal, Proposal):
            tokens = list(proposal) if isinstance(proposal, Iterable) else [proposal]
            proposal = Proposal(tokens, [1.0] * len(tokens), [self.name] * len(tokens))
        proposal = proposal.cut(limit)
        for token in proposal.tokens:
            if not isinstance(token, Integral) or not 0 <= token < self._vocab_size:
                raise SpecdecError(
                    f"the proposer {self.name} proposed {token!r:.60}",
                    f"a token id is a whole number from 0 to {self._vocab_size - 1}",
                )
        proposal.tokens = list(map(int, proposal.tokens))
        qs, size = proposal.known_distributions(), len(proposal)
        drawn = len(qs) == size and all(q.p(token) > 0 for token, q in zip(proposal.tokens, qs, strict=True))
        if not drawn or len(proposal.confidence) != size or len(proposal.sources) != size:
            raise SpecdecError(
                f"the proposer {self.name} made a faulty proposal",
                "each token needs a confidence, a source, and a distribution that allows it, if there are any",
                "return a list of token ids",
            )
        return proposal

    def observe(self, emitted: Sequence[int]) -> None:
        """Tell the application what the target wrote."""
        self._proposer.observe(list(emitted))
