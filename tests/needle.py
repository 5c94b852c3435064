"""Facts hidden in long texts, found again with each type of cache: `python tests/needle.py MODEL [--cache fp32,auto]`.

MODEL is a model's folder, such as PAIR/target. Every text is the log of a station, with facts spread evenly over it. Each is
asked for by itself, and an answer counts if it holds the number; the text is read once for all its questions. The table shows
by length how many facts were found, and how many answers have the same tokens as with the first type of cache.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from specdec_onnx.models.tokenizer import Tokenizer
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.tui.bench.long_prompts import log

COLOURS = (
    "amber",
    "violet",
    "scarlet",
    "turquoise",
    "ivory",
    "crimson",
    "olive",
    "silver",
    "bronze",
    "indigo",
)
ANSWER_TOKENS, SPARE_TOKENS = 16, 200
"""The most of an answer, and the room that it, the question and the chat template get beside the text."""


@dataclass(frozen=True)
class Haystack:
    """A text, and the number that it tells for each colour."""

    text: str
    numbers: dict[str, str]


class Found(NamedTuple):
    """Whether an answer holds the number, and its tokens."""

    right: bool
    tokens: tuple[int, ...]


def haystack(tokenizer: Tokenizer, length: int, facts: int) -> Haystack:
    """A log of nearly `length` tokens with `facts` numbers, the first at its beginning and the last at its end."""
    random = Random(length)
    numbers = {colour: str(random.randrange(10_000, 100_000)) for colour in COLOURS[:facts]}
    needles = [f"The code of the {colour} locker is {number}." for colour, number in numbers.items()]
    room = length - sum(len(tokenizer.encode(needle)) for needle in needles)
    paragraphs = list[str]()
    for paragraph in log(length):
        room -= len(tokenizer.encode(paragraph)) + 1
        if room < 0:
            break
        paragraphs.append(paragraph)
    for index, needle in reversed(list(enumerate(needles))):
        paragraphs.insert(round(index * len(paragraphs) / (facts - 1)), needle)
    return Haystack("\n\n".join(paragraphs), numbers)


def ask(engine: Engine, hay: Haystack) -> list[Found]:
    """Ask for every colour's number."""
    results = []
    for colour, number in hay.numbers.items():
        question = f"What is the code of the {colour} locker? Answer with the number only."
        prompt = f"{hay.text}\n\n{question}"
        answer = engine.generate(prompt, mode="plain", max_new_tokens=ANSWER_TOKENS)
        results.append(Found(number in answer, tuple(engine.last.tokens)))
        print(f"  {colour}: {answer!r}, expected {number}", file=sys.stderr)
    return results


def score(
    model: Path, cache: str, lengths: Sequence[int], facts: int, threads: int
) -> dict[int, list[Found]]:
    """The answers for each length, with one type of cache."""
    results: dict[int, list[Found]] = {}
    context = max(lengths) + SPARE_TOKENS
    with load(model, cache=cache, context=context, threads=threads, prefix_memory=0) as engine:
        for length in lengths:
            start = time.perf_counter()
            results[length] = ask(engine, haystack(engine.tokenizer, length, facts))
            print(f"{cache}, {length} tokens: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return results


def table(scores: Mapping[str, Mapping[int, Sequence[Found]]]) -> list[str]:
    """A line for each type of cache: facts found of all, and answers that equal the first type's."""
    first = next(iter(scores.values()))
    lines = [f"{'found, (same)':14}" + "".join(f"{length:>16}" for length in first)]
    for cache, by_length in scores.items():
        cells = []
        for length, found in by_length.items():
            same = sum(each.tokens == other.tokens for each, other in zip(found, first[length], strict=True))
            right = sum(each.right for each in found)
            cells.append(f"{right / len(found):.0%} ({same}/{len(found)})")
        lines.append(f"{cache:14}" + "".join(f"{cell:>16}" for cell in cells))
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--cache", default="fp32,auto", help="types, comma-separated")
    parser.add_argument("--lengths", default="2048,4096,8192,16384", help="tokens, comma-separated")
    parser.add_argument("--facts", type=int, choices=range(2, len(COLOURS) + 1), default=len(COLOURS))
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    lengths = [int(length) for length in args.lengths.split(",")]
    scores = {
        cache: score(args.model, cache, lengths, args.facts, args.threads) for cache in args.cache.split(",")
    }
    print("\n".join(table(scores)))


if __name__ == "__main__":
    main()
