"""The `specdec` command: find the command's module, run it, turn errors into exit codes."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from specdec_onnx import __version__
from specdec_onnx.models.errors import explain
from specdec_onnx.models.text import printable
from specdec_onnx.tui.cli import arguments
from specdec_onnx.tui.cli.parser import Parser
from specdec_onnx.tui.cli.streams import settle

BAD_INPUT, INTERNAL, INTERRUPTED, CLOSED_PIPE = 2, 1, 130, 141


class Command(NamedTuple):
    """One command; `module` has a function `run(args)`, whose result is the exit code."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    module: str


COMMANDS = {
    "chat": Command(
        "chat with a pair, in the terminal or in a browser",
        arguments.chat_arguments,
        "specdec_onnx.tui.chat.command",
    ),
    "run": Command(
        "answer one prompt; the answer streams to stdout", arguments.run_arguments, "specdec_onnx.tui.cli.run"
    ),
    "bench": Command(
        "measure how much faster each mode is, and that it changes no token",
        arguments.bench_arguments,
        "specdec_onnx.tui.bench.command",
    ),
    "compare": Command(
        "measure a pair on several devices, and say which to choose",
        arguments.compare_arguments,
        "specdec_onnx.tui.compare.command",
    ),
    "doctor": Command(
        "show what this machine offers, and how a pair runs on it",
        arguments.doctor_arguments,
        "specdec_onnx.tui.cli.doctor",
    ),
    "demo": Command(
        "get a pair, and compare its plain and speculative answers",
        arguments.demo_arguments,
        "specdec_onnx.tui.cli.demo",
    ),
}


def build_parser() -> Parser:
    """The whole command line."""
    parser = Parser(
        prog="specdec",
        description="Speculative decoding for local language models: faster, and never a different token.",
        epilog="specdec-export prepares pairs from other models.",
    )
    parser.add_argument("--version", action="version", version=f"specdec-onnx {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        summary = command.summary
        command.add_arguments(
            commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `specdec`; the result is the exit code."""
    settle()
    try:
        args = build_parser().parse_args(argv)
        code: int = import_module(COMMANDS[args.command].module).run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_stdout()
        return CLOSED_PIPE
    except Exception as error:
        if os.environ.get("SPECDEC_DEBUG"):
            raise
        return _report(error)


def _give_up_stdout() -> None:
    """Keep what is still buffered from raising again when the interpreter closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: Exception) -> int:
    known = explain(error)
    if known is None:
        print(printable(f"{type(error).__name__}: {error}"), file=sys.stderr)
        print("  try: set SPECDEC_DEBUG=1 to see where this came from", file=sys.stderr)
        return INTERNAL
    print(printable(str(known)), file=sys.stderr)
    if not isinstance(error, OSError):
        return BAD_INPUT
    _give_up_stdout()  # stdout may be what is full
    return INTERNAL


if __name__ == "__main__":
    sys.exit(main())
