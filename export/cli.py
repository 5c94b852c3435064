"""The `specdec-export` command: sources in, a folder out, a report on stdout."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from specdec_onnx.models.command import INTERRUPTED, CommandParser, ExitCode
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.progress import ProgressLine
from specdec_onnx.models.system import user_path
from specdec_onnx.models.text import printable

if TYPE_CHECKING:
    from specdec_onnx.export.spec import LayerCount, Options


_FORMATS = (
    "mixed (feed-forward in 4 bits, attention in 8), w8a8, int4, int8 or fp32; int4-64 sets the block size"
)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = CommandParser(
        prog="specdec-export",
        description="Turn a checkpoint into a quantized ONNX model, or two into a pair.",
        epilog="SOURCE is a catalog name (qwen2.5-coder-1.5b, smollm2-135m), a .gguf file, a folder with "
        "safetensors and config.json, or a model on the hub: org/name, org/name@revision, org/name/FILE.gguf. "
        "`specdec-export inspect DIR` shows the report of an earlier export.",
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="the model, which becomes the target of a pair")
    add("-o", "--output", metavar="DIR", type=_folder, required=True, help="the folder to make")
    add(
        "--target-format",
        metavar="F",
        help=f"{_FORMATS}; 'gguf' copies the blocks of a GGUF file, 'mixed' only those of 4 bits; 'auto' measures the "
        "default format and the next best here, and keeps the faster one if its quality is close (default: mixed where "
        "specdec's own CPU kernels run, w8a8 elsewhere)",
    )
    _add_draft_options(parser)
    add(
        "--context",
        metavar="N",
        type=_count,
        default=32768,
        help="longest text in tokens (default: %(default)s)",
    )
    add(
        "--graph",
        choices=("fused", "portable"),
        default="fused",
        help="portable: traced by Optimum, for families the fused graph lacks and for DirectML (default: %(default)s)",
    )
    add(
        "--cache",
        choices=("fp32", "fp16"),
        default="fp32",
        help="type of the key-value cache; fp16 is required by attention on CUDA, and takes half the memory "
        "(default: %(default)s)",
    )
    add("--no-measure", action="store_true", help="leave forward costs and quality out of the report")
    add("--no-smoothing", action="store_true", help="quantize w8a8 and int4 without calibrating on text")
    add("--force", action="store_true", help="replace an export that is already there")
    return parser


def _add_draft_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--draft",
        metavar="SOURCE",
        help="the small model that drafts for it; 'auto' takes one from the catalog by vocabulary and size, "
        "'none' for no draft",
    )
    add(
        "--draft-format",
        metavar="F",
        default="int4",
        help="weight format of the draft, any but 'auto' (default: %(default)s, block 128)",
    )
    add(
        "--trim",
        metavar="N",
        type=_count_or_none,
        default=32768,
        help="the draft scores only the N lowest token ids, which are the frequent ones, and the special tokens; "
        "'none' for all (default: %(default)s)",
    )
    add(
        "--draft-layers",
        metavar="N",
        type=_count_or_auto,
        help="keep the N layers of the draft with which it agrees most with the target; 'auto': drop only what makes "
        "the pair faster (default: keep all)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run `specdec-export`; the result is the exit code."""
    words = sys.argv[1:] if argv is None else argv
    with ExitCode() as result:
        args = None if words[:1] == ["inspect"] else build_parser().parse_args(words)
        _end_properly_on_signals()
        result.code = run(args) if args else inspect(words[1:])
    if result.code == INTERRUPTED:
        print("interrupted; no half-made folder is left", file=sys.stderr)
    return result.code


def run(args: argparse.Namespace) -> int:
    """Fetch the sources, export them, print the report."""
    from specdec_onnx.export.pipeline import export_pair
    from specdec_onnx.export.quality.report import decisions, read_report, render
    from specdec_onnx.export.sources import resolve
    from specdec_onnx.export.staging import require_free

    options = options_of(args)
    options.target(), options.draft()  # refuse an unknown format, and a taken folder, before downloading
    require_free(args.output, force=args.force)
    progress, began = ProgressLine(), time.monotonic()
    try:
        target, draft = resolve(args.source, args.draft, progress, progress.say)
        folder = export_pair(
            target,
            draft,
            args.output,
            options,
            measure=not args.no_measure,
            force=args.force,
            progress=progress,
        )
    finally:
        progress.close()
    report = read_report(folder)
    for line in decisions(report):
        print(printable(line), file=sys.stderr)
    print(printable(render(report)))
    print(f"written to {folder}, all in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


def options_of(args: argparse.Namespace) -> "Options":
    """The export options on the command line."""
    from specdec_onnx.export.spec import Options

    return Options(
        target_format=args.target_format,
        draft_format=args.draft_format,
        trim=args.trim,
        context=args.context,
        smooth=not args.no_smoothing,
        graph=args.graph,
        draft_layers=args.draft_layers,
        cache=args.cache,
    )


def inspect(words: Sequence[str]) -> int:
    """Print the report of an earlier export."""
    from specdec_onnx.export.quality.report import describe_report

    parser = CommandParser(prog="specdec-export inspect", description="Show an export's report.")
    parser.add_argument("folder", metavar="DIR", type=_folder, help="a folder that specdec-export made")
    folder = parser.parse_args(words).folder
    if not folder.is_dir():
        raise SpecdecError(f"there is no folder {folder}", fix="give a folder that specdec-export made")
    print(printable(describe_report(folder)))
    return 0


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return user_path(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _count_or_none(text: str) -> int | None:
    return None if text == "none" else _count(text)


def _count_or_auto(text: str) -> "LayerCount":
    return "auto" if text == "auto" else _count(text)


def _end_properly_on_signals() -> None:
    """Clean up when the process is asked to end or its terminal closes; nohup, which ignores the latter, still does."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _terminate)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
