"""`specdec demo`: one command from nothing to two answers side by side."""

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_onnx.tui.options import THREADS_HELP, positive, text
from specdec_onnx.tui.streams import shown

if TYPE_CHECKING:
    from rich.console import Console

    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.tui.bench.contestant import Run


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

    from specdec_onnx.runtime.device import check_threads
    from specdec_onnx.runtime.engine import load
    from specdec_onnx.tui.options import say_measuring
    from specdec_onnx.tui.prepare import prepare
    from specdec_onnx.tui.side_by_side import side_by_side

    positive("--max-new-tokens", args.max_new_tokens)
    check_threads(args.threads)
    show = LOOKUP if args.small else CODING
    folder = prepare(show.pair)
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
    from specdec_onnx.tui.bench.measure import WARM_UP_TOKENS

    for each in ("plain", mode):
        engine.generate("Hello", mode=each, max_new_tokens=WARM_UP_TOKENS)


def _answer(engine: "Engine", prompt: str, mode: str, most: int, console: "Console") -> "Run":
    """Stream one answer to the terminal, from empty caches."""
    from specdec_onnx.runtime.parameters import Parameters
    from specdec_onnx.tui.bench.contestant import Mode
    from specdec_onnx.tui.bench.prompts import Prompt

    console.rule(f"[bold]{mode}", align="left")

    def show(text: str) -> None:
        print(shown(text, sys.stdout), end="", flush=True)

    run = Mode(engine, mode, Parameters(max_new_tokens=most), on_text=show).answer(Prompt("demo", (prompt,)))
    print()
    return run
