"""Continues the text as it went on before: the longest match of its end in everything seen so far."""

from collections import deque
from collections.abc import Sequence

from specdec_onnx.runtime.prefill import common_prefix
from specdec_onnx.runtime.proposer.automaton import ROOT, Automaton
from specdec_onnx.runtime.proposer.base import Proposal, Worth
from specdec_onnx.runtime.proposer.reliability import Reliability

CAPACITY = 1 << 15
"""Tokens in the store, about 16 MB; when it is full, it is rebuilt from the most recent half."""

LEAD_IN = 16
"""Tokens kept in front of a cut-off piece when the store is rebuilt, so that a match can lead into the piece."""


class Suffix:
    """Proposes from the context and from whatever was ever cut off it: earlier answers stay searchable.

    Where a text continued in several ways, the most frequent way is taken, among equals the most recent. Rejected
    tokens never enter the store. Several stores may share what they learned about `reliability`.

    A store is meant for one conversation, or for one prompt outside of any: what others said is no guide there. The
    context is compared with the text that was followed so far, every time, so that a branch is always noticed.
    """

    name = "suffix"

    def __init__(self, capacity: int = CAPACITY, reliability: Reliability | None = None) -> None:
        self._capacity, self._reliability = capacity, reliability or Reliability()
        self._text: list[int] = []
        self._pieces: deque[list[int]] = deque()
        self._predicted: list[tuple[int, int]] = []
        self._automaton, self._states, self._offset, self._stored = Automaton(), [ROOT], 0, 0

    def begin(self, context: Sequence[int]) -> None:
        """A new answer: the context is cut back to what it shares with `context`, and goes on with its rest."""
        self._predicted = []
        self._follow(context)

    def propose(self, context: Sequence[int], limit: int, worth: Worth) -> Proposal:
        """Up to `limit` tokens, while each is worth its check; none where the text never said the like."""
        self._follow(context)
        proposal, chance = Proposal(), 1.0
        state, matched = self._states[-1], len(self._text)
        self._predicted = []
        while len(proposal) < limit and (state := self._automaton.continued(state)) != ROOT:
            matched = min(matched, self._automaton.length[state])
            token, confidence = self._predict(state, matched)
            chance *= confidence
            if not worth(chance, len(proposal) + 1):
                break
            proposal.tokens.append(token)
            proposal.confidence.append(confidence)
            proposal.sources.append(self.name)
            state, matched = self._automaton.follow[state][token], matched + 1
        return proposal

    def observe(self, emitted: Sequence[int]) -> None:
        """Learn from what the target said where this proposer would have drafted, drafted or not."""
        predicted, self._predicted = self._predicted, []
        for (token, kind), said in zip(predicted, emitted, strict=False):
            self._reliability.observe(kind, token == said)
            if token != said:
                break

    def rollback(self, length: int) -> None:
        """Cut the context back; what is cut off stays in the store."""
        if length < len(self._text):
            self._pieces.append(self._text[max(0, length - LEAD_IN) :])
            del self._text[length:]
            del self._states[max(1, length - self._offset + 1) :]
            if length < self._offset:
                self._states, self._offset = [ROOT], length

    def _predict(self, state: int, matched: int) -> tuple[int, float]:
        """The token that follows a match, and the chance that it is right."""
        store = self._automaton
        token, follow = store.best[state], store.follow[state]
        kind = self._reliability.class_of(
            matched, store.count[state], store.count[follow[token]], len(follow)
        )
        self._predicted.append((token, kind))
        return token, self._reliability.chance(kind)

    def _follow(self, context: Sequence[int]) -> None:
        self.rollback(common_prefix(self._text, context))
        for token in context[len(self._text) :]:
            self._push(token)

    def _push(self, token: int) -> None:
        if self._stored >= self._capacity:
            self._rebuild()
        self._text.append(token)
        self._states.append(self._automaton.extend(self._states[-1], token))
        self._stored += 1

    def _start_afresh(self, offset: int) -> None:
        """An empty store for a context whose first `offset` tokens it won't hold."""
        self._automaton, self._states, self._offset, self._stored = Automaton(), [ROOT], offset, 0

    def _rebuild(self) -> None:
        """Fill a new store with the most recent half: the context first, then the newest pieces cut off it."""
        room = self._capacity // 2
        context = self._text[-room:]
        self._start_afresh(len(self._text) - len(context))
        self._pieces = _newest(self._pieces, room - len(context))
        for piece in self._pieces:
            state = ROOT
            for token in piece:
                state = self._automaton.extend(state, token)
        for token in context:
            self._states.append(self._automaton.extend(self._states[-1], token))
        self._stored = len(context) + sum(map(len, self._pieces))


def _newest(pieces: Sequence[list[int]], room: int) -> deque[list[int]]:
    """The last pieces that fit, the first of them cut."""
    kept: deque[list[int]] = deque()
    for piece in reversed(pieces):
        if room <= 0:
            break
        kept.appendleft(piece[-room:])
        room -= len(kept[0])
    return kept
