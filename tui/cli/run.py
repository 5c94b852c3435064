"""`specdec run`: one prompt in, one answer out."""

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.cli.options import MODES, add_engine_arguments, add_sampling_arguments, text
from specdec_onnx.tui.cli.streams import as_json, input_left, read_input, shown

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.sampling.parameters import Parameters


STDIN = "-"
_HOW = 'specdec run PAIR "your prompt", or pipe text in'
CUT = {
    "length": " · cut off by --max-new-tokens",
    "context": " · cut off by the context limit",
    "cancelled": " · stopped",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PAIR, the prompt, and how to answer it."""
    add_engine_arguments(parser)
    parser.add_argument(
        "prompt",
        nargs="*",
        default=[],
        type=text,
        metavar="PROMPT",
        help="what to answer; a - in it stands for the text on stdin, which is otherwise read only if there "
        'is no PROMPT: cat FILE | specdec run PAIR "Explain this file" -',
    )
    parser.add_argument("--system", type=text, metavar="TEXT", help="instructions that go before the prompt")
    parser.add_argument(
        "--raw", action="store_true", help="continue the prompt as it is, without the chat template"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object when the answer is complete"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--mode", choices=MODES, default="auto", help="who proposes tokens (default: %(default)s)"
    )
    mode.add_argument(
        "--no-speculate", dest="mode", action="store_const", const="plain", help="same as --mode plain"
    )
    add_sampling_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Answer the prompt; text goes to stdout, the statistics line to stderr."""
    from specdec_onnx.tui.cli.options import load_engine, parameters

    if args.raw and args.system:
        raise SpecdecError("--raw and --system exclude each other", "a raw prompt goes to the model as it is")
    settings = parameters(args)
    prompt = _prompt(args.prompt, raw=args.raw)
    told = _tell_of_unread_input(args.prompt)
    code = _answer(load_engine(args), prompt, settings, args)
    if not told:
        _tell_of_unread_input(args.prompt)  # some write slowly
    return code


def _prompt(words: Sequence[str], *, raw: bool) -> str:
    """The words, with the text on stdin in place of a -, or of no words; its last newlines only if raw."""
    if words.count(STDIN) > 1:
        raise SpecdecError("PROMPT has more than one -", "stdin can be read only once")
    if not words and sys.stdin.isatty():
        raise SpecdecError("there is no prompt", fix=_HOW)
    parts = []
    for is_input, group in groupby(words or [STDIN], STDIN.__eq__):
        part = read_input(raw=raw) if is_input else " ".join(group)
        if is_input and words and not part.strip():
            print("nothing came on stdin", file=sys.stderr)
        parts.append(part.rstrip("\n") if is_input and not raw else part)
    prompt = "\n\n".join(filter(None, parts))
    if not prompt.strip():
        raise SpecdecError("there is no prompt", fix=_HOW)
    return prompt


def _tell_of_unread_input(words: Sequence[str]) -> bool:
    """Say so where text stands ready on stdin that the prompt does not ask for, and whether it was said."""
    unread = STDIN not in words and bool(words) and input_left()
    if unread:
        print(
            "the text on stdin is not read: add a - to PROMPT to read it, </dev/null to leave it",
            file=sys.stderr,
        )
    return unread


def _answer(engine: "Engine", prompt: str, settings: "Parameters", args: argparse.Namespace) -> int:
    from specdec_onnx.tui.cli.main import INTERRUPTED
    from specdec_onnx.tui.cli.options import interrupt_cancels
    from specdec_onnx.tui.progress import Reading
    from specdec_onnx.tui.text import statistics_line

    with interrupt_cancels(engine.cancel), Reading() as reading:
        steps = engine.stream(
            prompt,
            parameters=settings,
            system=args.system,
            raw=args.raw,
            mode=args.mode,
            on_progress=reading,
        )
        for step in steps:
            reading.close()
            if not args.json:
                print(shown(step.text, sys.stdout), end="", flush=True)
    _finish(engine, whole=args.json)
    print(
        statistics_line(engine.last.statistics) + CUT.get(engine.last.finish_reason or "", ""),
        file=sys.stderr,
    )
    return INTERRUPTED if engine.last.finish_reason == "cancelled" else 0


def _finish(engine: "Engine", *, whole: bool) -> None:
    last = engine.last
    if not whole:
        print("" if last.text.endswith("\n") else "\n", end="", flush=True)
        return
    answer = {
        "text": last.text,
        "tokens": list(last.tokens),
        "finish_reason": last.finish_reason,
        "statistics": last.statistics.as_dict(),
    }
    print(as_json(answer))
