"""The `specdec` command: the table of its subcommands, and how one is run."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from specdec_onnx import __version__
from specdec_onnx.models.command import ExitCode
from specdec_onnx.tui.cli import arguments
from specdec_onnx.tui.cli.parser import Parser


class Command(NamedTuple):
    """One command; `module`, in specdec_onnx.tui, has a function `run(args)`, whose result is the exit code."""

    module: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    summary: str


COMMANDS = {
    "chat": Command(
        "chat.command", arguments.chat_arguments, "chat with a pair, in the terminal or in a browser"
    ),
    "run": Command("cli.run", arguments.run_arguments, "answer one prompt; the answer streams to stdout"),
    "serve": Command(
        "serve.command", arguments.serve_arguments, "serve a pair to programs that speak OpenAI's protocol"
    ),
    "bench": Command(
        "bench.command",
        arguments.bench_arguments,
        "measure the speed of each mode, and check that no token changes",
    ),
    "compare": Command(
        "compare.command",
        arguments.compare_arguments,
        "measure a pair on several devices, and say which to choose",
    ),
    "doctor": Command(
        "cli.doctor", arguments.doctor_arguments, "show what this machine offers, and how a pair runs on it"
    ),
    "demo": Command(
        "cli.demo", arguments.demo_arguments, "get a pair, and compare its plain and speculative answers"
    ),
}


def build_parser() -> Parser:
    """The whole command line."""
    parser = Parser(
        prog="specdec",
        description="Speculative decoding for local language models: faster, and never a different token.",
        epilog="specdec-export makes pairs from other models.",
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
    with ExitCode() as result:
        args = build_parser().parse_args(argv)
        result.code = import_module(f"specdec_onnx.tui.{COMMANDS[args.command].module}").run(args)
    return result.code


if __name__ == "__main__":
    sys.exit(main())
