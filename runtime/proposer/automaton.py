"""Every substring of the texts so far, with what followed it most often, in linear space.

The online suffix automaton of Blumer et al. 1985, extended to texts that branch (an edited chat): a state stands for
all substrings that end at the same places, its link for the longest shorter suffix that also ends elsewhere.
Amortised O(1) per token.
"""

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
