"""The `specdec` command: find the command module, run it, turn errors into exit codes."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from specdec_onnx import __version__
from specdec_onnx.models.errors import explain
from specdec_onnx.tui.cli.parser import Parser
from specdec_onnx.tui.cli.streams import settle
from specdec_onnx.tui.text import printable

MODULES = {
    "chat": "specdec_onnx.tui.chat.command",
    "run": "specdec_onnx.tui.cli.run",
    "bench": "specdec_onnx.tui.bench.command",
    "compare": "specdec_onnx.tui.compare.command",
    "doctor": "specdec_onnx.tui.cli.doctor",
    "demo": "specdec_onnx.tui.cli.demo",
}
COMMANDS = {
    "chat": "chat with a pair in the terminal or in a browser",
    "run": "answer one prompt, streaming to stdout",
    "bench": "measure how much faster each mode is, and that it changes no token",
    "compare": "measure a pair on several devices, and say which to choose",
    "doctor": "what this machine offers, and what a pair costs and promises on it",
    "demo": "get a model pair and watch it answer plainly and speculatively",
}
BAD_INPUT, INTERNAL, INTERRUPTED, CLOSED_PIPE = 2, 1, 130, 141


class Command(Protocol):
    """What the module behind a command offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do the work; the result is the exit code."""


def command(name: str) -> Command:
    """The module behind one command; it imports nothing heavy until it runs."""
    return cast(Command, import_module(MODULES[name]))


def build_parser(chosen: str | None) -> Parser:
    """The whole command line; only the chosen command's module is imported."""
    parser = Parser(
        prog="specdec",
        description="Speculative decoding for local language models: faster, and never a different token.",
        epilog="Prepare models of your own with specdec-export.",
    )
    parser.add_argument("--version", action="version", version=f"specdec-onnx {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        child = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen:
            command(name).add_arguments(child)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `specdec`; the result is the exit code."""
    settle()
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        args = build_parser(chosen).parse_args(arguments)
        code = command(args.command).run(args)
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
    """What is still buffered must not raise again when the interpreter closes stdout."""
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
    _give_up_stdout()  # it may be what is full
    return INTERNAL


if __name__ == "__main__":
    sys.exit(main())
