"""`specdec demo`: get a pair, answer one prompt plainly and speculatively, show both side by side."""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_onnx.models.text import percent, rate, times
from specdec_onnx.runtime import engine
from specdec_onnx.runtime.generate import Statistics
from specdec_onnx.runtime.model.device import check_threads
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.tui import prepare
from specdec_onnx.tui.bench.prompts import Prompt
from specdec_onnx.tui.bench.runs import WARM_UP_TOKENS, Run, answer
from specdec_onnx.tui.cli.arguments import positive
from specdec_onnx.tui.cli.engine import say_measuring
from specdec_onnx.tui.cli.output import TableConsole
from specdec_onnx.tui.cli.streams import shown

BAR_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Example:
    """A pair, the mode to compare with plain decoding, and a prompt that suits it."""

    pair: str
    mode: str
    prompt: str


CODING = Example(
    "qwen2.5-coder-1.5b",
    "auto",
    "Write a Python class `LRUCache` with `get` and `put` in O(1), with type hints and docstrings. "
    "Then show how to use it.",
)
LOOKUP = Example(
    "smollm2-135m",
    "suffix",
    """Add docstrings to this Python class:

```python
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

    def size(self):
        return len(self.items)
```
""",
)


CELLS: dict[str, Callable[[Statistics], str]] = {
    "speed": lambda answer: rate(answer.decode_tokens_per_second),
    "answer": lambda answer: f"{answer.new_tokens} tok in {answer.decode_seconds:.1f} s",
    "first token": lambda answer: f"{answer.time_to_first_token_ms / 1000:.2f} s",
    "tokens per round": lambda answer: f"{answer.tokens_per_round:.2f}",
    "drafts accepted": lambda answer: percent(answer.acceptance_rate) if answer.drafted else "–",
}
"""The table's rows."""


def run(args: argparse.Namespace) -> int:
    """Download and export what is missing, answer twice, and compare."""
    positive("--max-new-tokens", args.max_new_tokens)
    check_threads(args.threads)
    example = LOOKUP if args.small else CODING
    folder = prepare.prepared_pair(example.pair)
    print(f"loading {folder}", file=sys.stderr)
    loaded = engine.load(folder, threads=args.threads, on_measure=say_measuring)
    for mode in ("plain", example.mode):
        loaded.generate("Hello", mode=mode, max_new_tokens=WARM_UP_TOKENS)
    prompt, console = args.prompt or example.prompt, TableConsole()
    console.print(Text.assemble("\n", ("prompt", "bold"), "  ", shown(prompt, sys.stdout)))
    runs = {
        mode: _answer(loaded, prompt, mode, args.max_new_tokens, console) for mode in ("plain", example.mode)
    }
    console.print(side_by_side(runs))
    plain, fast = runs.values()
    return 0 if plain.tokens == fast.tokens else 1


def _answer(loaded: engine.Engine, prompt: str, mode: str, most: int, console: Console) -> Run:
    """Stream one answer to the terminal, from empty caches."""

    def show(text: str) -> None:
        print(shown(text, sys.stdout), end="", flush=True)

    console.rule(Text(mode, "bold"), align="left")
    run = answer(loaded, mode, Prompt("demo", (prompt,)), most, parameters=Parameters(), on_text=show)
    print()
    return run


def side_by_side(runs: Mapping[str, Run]) -> RenderableType:
    """A bar for each speed, a column for each answer, and whether they are the same."""
    bars, answers = Table.grid(padding=(0, 2)), Table("", box=None, pad_edge=False)
    fastest = max(map(_speed, runs.values())) or 1.0
    for (mode, run), color in zip(runs.items(), ("bright_black", "green"), strict=True):
        bar = Bar(fastest, 0, _speed(run), width=BAR_WIDTH, color=color)
        bars.add_row(mode, bar, rate(_speed(run)))
        answers.add_column(mode, justify="right")
    for name, cell in CELLS.items():
        answers.add_row(name, *(cell(run.turns[0]) for run in runs.values()))
    return Group(Text(), bars, Text(), answers, Text(), _verdict(*runs.values()))


def _verdict(plain: Run, fast: Run) -> Text:
    ratio = times(_speed(fast) / _speed(plain) if _speed(plain) else 0.0)
    if plain.tokens == fast.tokens:
        count = len(plain.tokens)
        return Text(f"{ratio} as fast, outputs identical: {count} of {count} tokens", "bold green")
    pairs = zip(plain.tokens, fast.tokens, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(plain.tokens), len(fast.tokens)))
    return Text(f"{ratio} as fast, but the outputs differ from token {same + 1} on", "bold red")


def _speed(run: Run) -> float:
    return run.turns[0].decode_tokens_per_second
