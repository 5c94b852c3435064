"""How far a match in the text can be trusted, learned from what the target went on to say."""

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
