"""Drafts from a phrase book: any proposer makes an answer sooner at best, and never different.

python custom_proposer.py PAIR
"""

import sys
from collections.abc import Callable, Sequence

import specdec_onnx as sd


class PhraseBook:
    """Proposes the rest of a phrase whose beginning was just written."""

    name = "phrases"

    def __init__(self, engine: sd.Engine, phrases: Sequence[str]) -> None:
        self._phrases = [engine.tokenizer.encode(phrase) for phrase in phrases]

    def propose(self, context: Sequence[int], limit: int, worth: Callable[[float, int], bool]) -> list[int]:
        """Token ids that may follow `context`; they are verified, so a wrong guess only costs time."""
        for phrase in self._phrases:
            for known in range(len(phrase) - 1, 0, -1):
                if list(context[-known:]) == phrase[:known]:
                    return phrase[known : known + limit]
        return []

    def observe(self, emitted: Sequence[int]) -> None:
        """The tokens that the target wrote instead or as proposed: nothing to learn here."""


def main(pair: str) -> None:
    """The same answer twice."""
    with sd.load(pair) as engine:
        prompt = "Write the licence header of a Python file under Apache 2.0."
        plain = engine.generate(prompt, max_new_tokens=80, mode="plain")
        book = PhraseBook(engine, ['Licensed under the Apache License, Version 2.0 (the "License")'])
        assert engine.generate(prompt, max_new_tokens=80, proposer=book) == plain
        print(plain)
        print(engine.last.statistics.accepted_by_source)


if __name__ == "__main__":
    main(sys.argv[1])
