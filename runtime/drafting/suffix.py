"""Drafts from the text itself: what followed the longest earlier match of its end."""

from collections import deque
from collections.abc import Sequence

from specdec_onnx.runtime.drafting.proposer import Proposal, Worth
from specdec_onnx.runtime.model.prefixes import common_prefix

MEMORY = 0.05
"""The weight of the newest verdict in its class: it looks back over about twenty, because edits and prose alternate."""

LENGTHS = 6
"""Classes of match length: 1, 2-3, 4-7, 8-15, 16-31 and longer. Acceptance grows with the logarithm."""

AGREEMENTS = 4
"""Classes of the continuations' agreement: at most half agree, most agree, seen only once, always the same."""

EXPECTED = (
    (0.15, 0.20, 0.30, 0.50),
    (0.20, 0.30, 0.60, 0.85),
    (0.30, 0.40, 0.80, 0.95),
    (0.30, 0.40, 0.85, 0.95),
    (0.30, 0.40, 0.90, 0.95),
    (0.30, 0.40, 0.90, 0.95),
)
"""What a new engine expects before it learns: the share of accepted proposals by match length and agreement, as
measured with Qwen2.5-Coder-1.5B on the benchmark's prompts and rounded; for rare classes, the one above."""

CONFIDENCE = 4.0
"""How many verdicts the expectation counts for; a few real ones outweigh it."""


class Reliability:
    """The running share of accepted proposals, by length of the match and agreement of its continuations."""

    def __init__(self) -> None:
        self._right = [0.0] * (LENGTHS * AGREEMENTS)
        self._judged = [0.0] * (LENGTHS * AGREEMENTS)
        self._expected = [share for row in EXPECTED for share in row]

    def class_of(self, matched: int, occurrences: int, agreeing: int, continuations: int) -> int:
        """The class of a match of `matched` tokens; `agreeing` of its `occurrences` continue with the best token."""
        agreement = int(2 * agreeing >= occurrences) if continuations > 1 else 2 + (agreeing > 1)
        return (min(matched.bit_length(), LENGTHS) - 1) * AGREEMENTS + agreement

    def chance(self, kind: int) -> float:
        """The chance that a token proposed in this class is accepted."""
        return (self._right[kind] + CONFIDENCE * self._expected[kind]) / (self._judged[kind] + CONFIDENCE)

    def observe(self, kind: int, right: bool) -> None:
        """Learn one verdict."""
        self._right[kind] += right - MEMORY * self._right[kind]
        self._judged[kind] += 1 - MEMORY * self._judged[kind]


WALK = 32
"""How many suffixes, longest first, a new token is counted for. Text has fewer (about a dozen), except where it repeats
itself endlessly; its short suffixes then count less."""

ROOT = 0


class Automaton:
    """A suffix automaton: each state stands for substrings that occur at the same places.

    `follow[s]` maps a token to the next state, `length[s]` is the length of the longest substring of state s,
    `link[s]` the state of its longest suffix that is in another state, `count[s]` how often the substrings occur, and
    `best[s]` the token that followed them most often, among equals most recently (-1: none). There are at most twice
    as many states as tokens.
    """

    def __init__(self) -> None:
        self.follow: list[dict[int, int]] = [{}]
        self.link, self.length, self.count, self.best = [-1], [0], [0], [-1]

    def extend(self, last: int, token: int) -> int:
        """Append a token to the text that ends in state `last`; returns the state in which it ends then."""
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
        """Split off the substrings of `known` that are those of `at` plus `token`; returns their state."""
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
"""Tokens in the store, about 16 MB; a full store is rebuilt from its most recent half."""

LEAD_IN = 16
"""Tokens kept before a removed piece when the store is rebuilt, so that a match can lead into the piece."""


class Suffix:
    """Drafts from the context and from everything that was ever cut off it: replaced answers remain searchable.

    Where a text continued in several ways, the most frequent one is proposed, among equals the most recent. Rejected
    tokens never enter the store. Several stores may share their `reliability`.

    A store belongs to one conversation, or to one prompt outside of any: the text of others is no guide there. Each
    context is compared with the text so far, so that a branch is always noticed.
    """

    name = "suffix"

    def __init__(self, capacity: int = CAPACITY, reliability: Reliability | None = None) -> None:
        self._capacity, self._reliability = capacity, reliability or Reliability()
        self._text: list[int] = []
        self._pieces: deque[list[int]] = deque()
        self._predicted: list[tuple[int, int]] = []
        self._automaton, self._states, self._offset, self._stored = Automaton(), [ROOT], 0, 0

    def begin(self, context: Sequence[int]) -> None:
        """Begin an answer: cut the text back to the prefix that it shares with `context`, and append the rest."""
        self._predicted = []
        self._follow(context)

    def propose(self, context: Sequence[int], limit: int, worth: Worth) -> Proposal:
        """Up to `limit` tokens, while each is worth verifying; none if the end of the text never occurred before."""
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
        """Learn from the target's tokens where this proposer made predictions, whether they were drafted or not."""
        predicted, self._predicted = self._predicted, []
        for (token, kind), actual in zip(predicted, emitted, strict=False):
            self._reliability.observe(kind, token == actual)
            if token != actual:
                break

    def _predict(self, state: int, matched: int) -> tuple[int, float]:
        """The token that follows a match, and the chance that it is accepted."""
        store = self._automaton
        token, follow = store.best[state], store.follow[state]
        kind = self._reliability.class_of(
            matched, store.count[state], store.count[follow[token]], len(follow)
        )
        self._predicted.append((token, kind))
        return token, self._reliability.chance(kind)

    def _follow(self, context: Sequence[int]) -> None:
        """Make `context` the text; what is cut off stays in the store."""
        length = common_prefix(self._text, context)
        if length < len(self._text):
            self._pieces.append(self._text[max(0, length - LEAD_IN) :])
            del self._text[length:]
            del self._states[max(1, length - self._offset + 1) :]
            if length < self._offset:
                self._states, self._offset = [ROOT], length
        for token in context[length:]:
            if self._stored >= self._capacity:
                self._rebuild()
            self._text.append(token)
            self._states.append(self._automaton.extend(self._states[-1], token))
            self._stored += 1

    def _rebuild(self) -> None:
        """Fill a new store with the most recent half: the context first, then the newest removed pieces."""
        room = self._capacity // 2
        context = self._text[-room:]
        self._automaton, self._states = Automaton(), [ROOT]
        self._offset = len(self._text) - len(context)  # the store lacks the context's tokens before this one
        self._pieces = _newest(self._pieces, room - len(context))
        for piece in self._pieces:
            state = ROOT
            for token in piece:
                state = self._automaton.extend(state, token)
        for token in context:
            self._states.append(self._automaton.extend(self._states[-1], token))
        self._stored = len(context) + sum(map(len, self._pieces))


def _newest(pieces: Sequence[list[int]], room: int) -> deque[list[int]]:
    """The last pieces that fit, the first of them truncated."""
    kept: deque[list[int]] = deque()
    for piece in reversed(pieces):
        if room <= 0:
            break
        kept.appendleft(piece[-room:])
        room -= len(kept[0])
    return kept
