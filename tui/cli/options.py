"""Command-line options that several commands share, and what they turn into."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from specdec_onnx.models.errors import SpecdecError

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.sampling.parameters import Parameters


THREADS_HELP = "0 means the physical cores (default)"
CONTEXT_HELP = "most tokens of prompt and answer (default: 8192, or the model's own limit if that is less)"

MODES = ("plain", "suffix", "draft", "auto")

SAMPLING: dict[str, tuple[type, str]] = {
    "max_new_tokens": (int, "stop after N new tokens (512; bench: 96)"),
    "temperature": (float, "0 takes the likeliest token each time"),
    "top_k": (int, "sample among the N likeliest tokens only"),
    "top_p": (float, "sample among the likeliest tokens that hold this much probability"),
    "min_p": (float, "drop tokens less likely than this share of the likeliest"),
    "repetition_penalty": (float, "divide the score of tokens already seen (1 is off)"),
    "presence_penalty": (float, "take this off the score of tokens already written"),
    "frequency_penalty": (float, "take this off for each time a token was written"),
    "seed": (int, "makes sampling repeatable"),
}


def add_engine_arguments(parser: argparse.ArgumentParser, *, pair_optional: bool = False) -> None:
    """PAIR and where and how to run it."""
    parser.add_argument(
        "pair",
        metavar="PAIR",
        nargs="?" if pair_optional else None,
        help="a folder made by specdec-export, or the name of an exported pair",
    )
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--draft", type=Path, metavar="FOLDER", help="use this draft model in place of the pair's"
    )
    group.add_argument(
        "--device",
        default="cpu",
        help="cpu, cuda, dml, webgpu, or auto for the fastest by measurement (default: %(default)s)",
    )
    group.add_argument("--draft-device", metavar="DEVICE", help="where the draft runs, when it is elsewhere")
    group.add_argument("--threads", type=int, default=0, metavar="N", help=THREADS_HELP)
    group.add_argument("--context", type=int, metavar="N", help=CONTEXT_HELP)


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """The fields of `Parameters`; one that is not given keeps the default of `Parameters`."""
    group = parser.add_argument_group("sampling")
    for name, (kind, about) in SAMPLING.items():
        metavar = "N" if kind is int else "X"
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=about)
    group.add_argument(
        "--stop",
        action="append",
        type=text,
        metavar="TEXT",
        default=argparse.SUPPRESS,
        help="end before this text (repeatable)",
    )


def text(word: str) -> str:
    """An argument that is text, in every locale; argparse reports one that is not."""
    if not any("\ud800" <= letter <= "\udfff" for letter in word):
        return word
    try:
        return os.fsencode(word).decode()
    except UnicodeError as error:
        raise argparse.ArgumentTypeError("it is not UTF-8 text") from error


def positive(flag: str, value: int | None) -> None:
    """Raise SpecdecError for a count below 1."""
    if value is not None and value < 1:
        raise SpecdecError(f"{flag} must be at least 1, not {value}")


def parameters(args: argparse.Namespace, **defaults: Any) -> "Parameters":
    """The sampling options that were given, over the command's own defaults."""
    from specdec_onnx.runtime.sampling.parameters import Parameters

    given = {name: value for name, value in vars(args).items() if name in SAMPLING}
    if stop := getattr(args, "stop", None):
        given["stop"] = tuple(stop)
    return Parameters(**(defaults | given))


def load_engine(args: argparse.Namespace) -> "Engine":
    """Open the pair that the options name."""
    from specdec_onnx.models.pair import locate
    from specdec_onnx.runtime.engine import load

    return load(
        locate(args.pair),
        draft=args.draft,
        device=args.device,
        draft_device=args.draft_device,
        threads=args.threads,
        context=args.context,
        on_measure=say_measuring,
    )


def say_measuring() -> None:
    """Tell why the first load of a pair takes longer."""
    print("measuring what a pass costs on this machine (the first time only)", file=sys.stderr)


@contextmanager
def interrupt_cancels(cancel: Callable[[], None]) -> Iterator[None]:
    """Call `cancel` on the first Ctrl-C inside the block; a second one raises KeyboardInterrupt."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cancel()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
