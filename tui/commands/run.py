"""`specdec run`: one prompt in, one answer out."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.options import MODES, add_engine_arguments, add_sampling_arguments

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.sampling import Parameters

CUT = {
    "length": " · cut off by --max-new-tokens",
    "context": " · cut off by the context limit",
    "cancelled": " · stopped",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PAIR, the prompt, and how to answer it."""
    add_engine_arguments(parser)
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="text piped in is added below it")
    parser.add_argument("--system", metavar="TEXT", help="instructions that go before the prompt")
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
    from specdec_onnx.tui.options import load_engine, parameters

    if args.raw and args.system:
        raise SpecdecError("--raw and --system exclude each other", "a raw prompt goes to the model as it is")
    prompt = _prompt(args.prompt, raw=args.raw)
    settings = parameters(args)
    return _answer(load_engine(args), prompt, settings, args)


def _prompt(given: str | None, *, raw: bool) -> str:
    """The words of the command line, then what is piped in (to the last newline when raw)."""
    try:
        piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
        text = "\n\n".join(part for part in (given, piped if raw else piped.rstrip("\n")) if part)
        text.encode()
    except UnicodeError as error:
        raise SpecdecError(
            "the prompt is not UTF-8 text", str(error), "convert it, with iconv for example"
        ) from error
    if not text.strip():
        raise SpecdecError("there is no prompt", fix='specdec run PAIR "your prompt", or pipe text in')
    return text


def _answer(engine: "Engine", prompt: str, settings: "Parameters", args: argparse.Namespace) -> int:
    from specdec_onnx.tui.cli import INTERRUPTED
    from specdec_onnx.tui.interrupt import interrupt_cancels
    from specdec_onnx.tui.wording import statistics_line

    steps = engine.stream(prompt, parameters=settings, system=args.system, raw=args.raw, mode=args.mode)
    with interrupt_cancels(engine.cancel):
        for step in steps:
            if not args.json:
                print(step.text, end="", flush=True)
    _finish(engine, as_json=args.json)
    print(
        statistics_line(engine.last.statistics) + CUT.get(engine.last.finish_reason or "", ""),
        file=sys.stderr,
    )
    return INTERRUPTED if engine.last.finish_reason == "cancelled" else 0


def _finish(engine: "Engine", *, as_json: bool) -> None:
    last = engine.last
    if not as_json:
        print("" if last.text.endswith("\n") else "\n", end="", flush=True)
        return
    answer = {
        "text": last.text,
        "tokens": list(last.tokens),
        "finish_reason": last.finish_reason,
        "statistics": last.statistics.as_dict(),
    }
    print(json.dumps(answer, ensure_ascii=False))
