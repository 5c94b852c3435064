"""Continues the text as it went on before: the longest match of its end in everything seen so far."""

from collections import deque
from collections.abc import Sequence

from specdec_onnx.runtime.drafting.proposer import Proposal, Worth
from specdec_onnx.runtime.model.decoder import common_prefix

MEMORY = 0.05
"""Weight of the newest verdict in its class: a class looks back over about twenty, since edits and prose take turns."""

LENGTHS = 6
"""Classes of match length: 1, 2-3, 4-7, 8-15, 16-31, and longer. Acceptance grows with the logarithm."""

AGREEMENTS = 4
"""Classes of the continuations' agreement: at most half agree, most agree, seen once only, always the same."""


EXPECTED = (
    (0.15, 0.20, 0.30, 0.50),
    (0.20, 0.30, 0.60, 0.85),
    (0.30, 0.40, 0.80, 0.95),
    (0.30, 0.40, 0.85, 0.95),
    (0.30, 0.40, 0.90, 0.95),
    (0.30, 0.40, 0.90, 0.95),
)
"""The share of right proposals by match length and agreement that Qwen2.5-Coder-1.5B's answers to the benchmark's own
prompts showed, rounded; where a class was hardly seen, the one above it. What a new engine expects before it learns."""

CONFIDENCE = 4.0
"""Verdicts that the expectation is worth; a few of the real ones outweigh it."""


class Reliability:
    """The running share of right proposals by length of the match and agreement of its continuations."""

    def __init__(self) -> None:
        self._right = [0.0] * (LENGTHS * AGREEMENTS)
        self._judged = [0.0] * (LENGTHS * AGREEMENTS)
        self._expected = [share for row in EXPECTED for share in row]

    def class_of(self, matched: int, occurrences: int, agreeing: int, continuations: int) -> int:
        """The class of a match of `matched` tokens seen `occurrences` times, `agreeing` of them with the best token."""
        agreement = int(2 * agreeing >= occurrences) if continuations > 1 else 2 + (agreeing > 1)
        return (min(matched.bit_length(), LENGTHS) - 1) * AGREEMENTS + agreement

    def chance(self, kind: int) -> float:
        """The chance that a token proposed in this class is right."""
        return (self._right[kind] + CONFIDENCE * self._expected[kind]) / (self._judged[kind] + CONFIDENCE)

    def observe(self, kind: int, right: bool) -> None:
        """Learn one verdict."""
        self._right[kind] += right - MEMORY * self._right[kind]
        self._judged[kind] += 1 - MEMORY * self._judged[kind]


WALK = 32
"""Longest chain of suffixes, from the longest on, that a new token is counted for. Chains in text are shorter (about
a dozen); only a text that repeats itself without end has longer ones, and its short suffixes then count less."""

ROOT = 0


class Automaton:
    """States are numbers; `follow[s]` maps a token to the next state, `length[s]` is the longest substring's length.

    `count[s]` is how often those substrings occur, `best[s]` the token that followed them most often, and among equals
    most recently (-1: none).
    """

    def __init__(self) -> None:
        self.follow: list[dict[int, int]] = [{}]
        self.link, self.length, self.count, self.best = [-1], [0], [0], [-1]

    def __len__(self) -> int:
        """The number of states: at most twice the tokens."""
        return len(self.follow)

    def extend(self, last: int, token: int) -> int:
        """Append a token to the text that ends in state `last`; returns the state it then ends in."""
        known = self.follow[last].get(token)
        if known is None:
            state = self._append(last, token)
        else:
            state = known if self.length[known] == self.length[last] + 1 else self._split(last, token, known)
        self._count(last, token)
        return state

    def continued(self, state: int) -> int:
        """The longest suffix of `state` that was ever followed by anything; ROOT when none was."""
        while state > ROOT and not self.follow[state]:
            state = self.link[state]
        return state

    def _append(self, last: int, token: int) -> int:
        state = self._add({}, self.length[last] + 1, ROOT, 0, -1)
        at = last
        while at >= 0 and token not in self.follow[at]:
            self.follow[at][token] = state
            if self.best[at] < 0:
                self.best[at] = token
            at = self.link[at]
        if at >= 0:
            known = self.follow[at][token]
            fits = self.length[known] == self.length[at] + 1
            self.link[state] = known if fits else self._split(at, token, known)
        return state

    def _split(self, at: int, token: int, known: int) -> int:
        """Part the substrings of `known` that end in `at`'s plus `token` from the longer ones; returns their state."""
        copy = dict(self.follow[known])
        state = self._add(copy, self.length[at] + 1, self.link[known], self.count[known], self.best[known])
        self.link[known] = state
        while at >= 0 and self.follow[at].get(token) == known:
            self.follow[at][token] = state
            at = self.link[at]
        return state

    def _add(self, follow: dict[int, int], length: int, link: int, count: int, best: int) -> int:
        self.follow.append(follow)
        self.length.append(length)
        self.link.append(link)
        self.count.append(count)
        self.best.append(best)
        return len(self.follow) - 1

    def _count(self, at: int, token: int) -> None:
        """Count one more occurrence of each suffix that now ends in `token`."""
        follow, count, best, link, counted = self.follow, self.count, self.best, self.link, ROOT
        for _ in range(WALK):
            state = follow[at][token]
            if state != counted:
                count[state] += 1
                counted = state
            if count[state] >= count[follow[at][best[at]]]:
                best[at] = token
            at = link[at]
            if at < 0:
                return


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
            proposal.add(token, confidence, self.name)
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
