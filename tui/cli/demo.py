"""`specdec demo`: one command from nothing to two answers side by side."""

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_onnx.runtime.generate import Statistics
from specdec_onnx.tui.bench.runs import Run
from specdec_onnx.tui.cli.options import THREADS_HELP, positive, text
from specdec_onnx.tui.cli.streams import shown
from specdec_onnx.tui.text import percent, rate, times

if TYPE_CHECKING:
    from rich.console import Console

    from specdec_onnx.runtime.engine import Engine


@dataclass(frozen=True, slots=True)
class Show:
    """One pair, the mode to compare with plain decoding, and a prompt that suits it."""

    pair: str
    mode: str
    prompt: str


CODING = Show(
    "qwen2.5-coder-1.5b",
    "auto",
    "Write a Python class `LRUCache` with `get` and `put` in O(1), with type hints and docstrings. "
    "Then show how to use it.",
)
LOOKUP = Show(
    "smollm2-135m",
    "suffix",
    """Repeat this Python class and say what it does:

class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

    def size(self):
        return len(self.items)
""",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which pair to show, and how long the answer may get."""
    parser.add_argument(
        "--small", action="store_true", help="a small model that looks drafts up in the text so far"
    )
    parser.add_argument(
        "--prompt", type=text, metavar="TEXT", help="answer this in place of the built-in prompt"
    )
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=256,
        metavar="N",
        help="length of the answer (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=0, metavar="N", help=THREADS_HELP)


def run(args: argparse.Namespace) -> int:
    """Download and export what is missing, answer twice, and compare."""
    from rich.console import Console
    from rich.markup import escape

    from specdec_onnx.runtime.engine import load
    from specdec_onnx.runtime.model.device import check_threads
    from specdec_onnx.tui.cli.options import say_measuring
    from specdec_onnx.tui.prepare import prepared_pair

    positive("--max-new-tokens", args.max_new_tokens)
    check_threads(args.threads)
    show = LOOKUP if args.small else CODING
    folder = prepared_pair(show.pair)
    print(f"loading {folder}", file=sys.stderr)
    engine = load(folder, threads=args.threads, on_measure=say_measuring)
    prompt = args.prompt or show.prompt
    _warm_up(engine, show.mode)
    console = Console()
    console.print(f"\n[bold]prompt[/]  {escape(shown(prompt, sys.stdout))}", highlight=False)
    plain = _answer(engine, prompt, "plain", args.max_new_tokens, console)
    fast = _answer(engine, prompt, show.mode, args.max_new_tokens, console)
    console.print(side_by_side(plain, fast))
    return 0 if plain.tokens == fast.tokens else 1


def _warm_up(engine: "Engine", mode: str) -> None:
    from specdec_onnx.tui.bench.runs import WARM_UP_TOKENS

    for each in ("plain", mode):
        engine.generate("Hello", mode=each, max_new_tokens=WARM_UP_TOKENS)


def _answer(engine: "Engine", prompt: str, mode: str, most: int, console: "Console") -> "Run":
    """Stream one answer to the terminal, from empty caches."""
    from specdec_onnx.runtime.sampling.parameters import Parameters
    from specdec_onnx.tui.bench.prompts import Prompt
    from specdec_onnx.tui.bench.runs import Mode

    console.rule(f"[bold]{mode}", align="left")

    def show(text: str) -> None:
        print(shown(text, sys.stdout), end="", flush=True)

    run = Mode(engine, mode, Parameters(max_new_tokens=most), on_text=show).answer(Prompt("demo", (prompt,)))
    print()
    return run


BAR_WIDTH = 40


def side_by_side(plain: Run, fast: Run) -> RenderableType:
    """A bar for each speed, a column for each answer, and whether they are the same."""
    before, after = plain.turns[0], fast.turns[0]
    return Group(
        Text(),
        _bars(plain, fast),
        Text(),
        _columns(plain, fast),
        Text(),
        _verdict(plain, fast, _ratio(before, after)),
    )


def _ratio(before: Statistics, after: Statistics) -> float:
    speed = before.decode_tokens_per_second
    return after.decode_tokens_per_second / speed if speed else 0.0


def _bars(*runs: Run) -> Table:
    table = Table.grid(padding=(0, 2))
    fastest = max(run.turns[0].decode_tokens_per_second for run in runs) or 1.0
    for run, color in zip(runs, ("bright_black", "green"), strict=True):
        speed = run.turns[0].decode_tokens_per_second
        table.add_row(run.mode, Bar(fastest, 0, speed, width=BAR_WIDTH, color=color), rate(speed))
    return table


def _columns(*runs: Run) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column()
    for run in runs:
        table.add_column(run.mode, justify="right")
    for name, cells in _rows([run.turns[0] for run in runs]).items():
        table.add_row(name, *cells)
    return table


def _rows(answers: list[Statistics]) -> dict[str, list[str]]:
    return {
        "speed": [rate(each.decode_tokens_per_second) for each in answers],
        "answer": [f"{each.new_tokens} tok in {each.decode_seconds:.1f} s" for each in answers],
        "first token": [f"{each.time_to_first_token_ms / 1000:.2f} s" for each in answers],
        "tokens per round": [f"{each.tokens_per_round:.2f}" for each in answers],
        "drafts accepted": [percent(each.acceptance_rate) if each.drafted else "–" for each in answers],
    }


def _verdict(plain: Run, fast: Run, ratio: float) -> Text:
    if plain.tokens == fast.tokens:
        return Text(
            f"{times(ratio)} as fast, outputs identical: {len(plain.tokens)} of {len(plain.tokens)} tokens",
            "bold green",
        )
    pairs = zip(plain.tokens, fast.tokens, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(plain.tokens), len(fast.tokens)))
    return Text(f"{times(ratio)} as fast, but the outputs differ from token {same + 1} on", "bold red")
