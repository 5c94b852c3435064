"""A proposer that knows the answer and is wrong on purpose."""

from collections.abc import Sequence

from specdec_onnx.runtime.drafting.proposer import Proposal, Worth


class ScriptedProposer:
    """Drafts `length` tokens of `answer`, with one wrong token in every `wrong`-th proposal (0: never)."""

    name = "scripted"

    def __init__(self, answer: Sequence[int], length: int, wrong: int = 2) -> None:
        self._answer, self._length, self._wrong = list(answer), length, wrong
        self._calls, self._start = 0, -1

    def begin(self, context: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], limit: int, worth: Worth) -> Proposal:
        self._start = len(context) if self._start < 0 else self._start
        at = len(context) - self._start
        drafted = self._answer[at : at + min(self._length, limit)]
        self._calls += 1
        if drafted and self._wrong and self._calls % self._wrong == 0:
            place = (7 * self._calls) % len(drafted)
            drafted[place] = (drafted[place] + 1) % 300
        return Proposal(drafted, [0.9] * len(drafted), ["suffix"] * len(drafted))

    def observe(self, emitted: Sequence[int]) -> None: ...

    def rollback(self, length: int) -> None: ...
