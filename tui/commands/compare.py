"""`specdec compare`: on which device is it fastest, and from where on?"""

import argparse
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.commands.bench import modes_list
from specdec_onnx.tui.options import positive

if TYPE_CHECKING:
    from specdec_onnx.models.pair import Pair
    from specdec_onnx.tui.compare.spec import Plan

LENGTHS = (64, 256, 1024)
SPARE_CONTEXT = 96
"""Room for the chat template around the shortest prompts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PAIR, the places, what is measured there, and where the figures go."""
    parser.add_argument(
        "pair", metavar="PAIR", help="a folder made by specdec-export, or an exported pair's name"
    )
    parser.add_argument(
        "--draft", type=Path, metavar="FOLDER", help="use this draft model in place of the pair's"
    )
    parser.add_argument(
        "--devices",
        metavar="A,B",
        help="cpu, cuda, dml, webgpu or auto; cpu:1 for one thread, webgpu+cpu for target and draft apart"
        " (default: all that are usable)",
    )
    parser.add_argument(
        "--prompt-lengths",
        type=_lengths,
        metavar="N,N",
        help="prompts of about so many tokens (default: 64, 256 and 1024, as far as the model has room)",
    )
    parser.add_argument(
        "--modes", type=modes_list, default=["plain", "auto"], metavar="A,B", help="default: plain,auto"
    )
    parser.add_argument("--max-new-tokens", type=int, default=48, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--repeat", type=int, default=2, metavar="N", help="rounds over all devices (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=900.0,
        metavar="S",
        help="most seconds for a device and round (default: 900)",
    )
    parser.add_argument("--json", metavar="OUT", help="write the figures to this file, or - for stdout")
    parser.add_argument(
        "--html", type=Path, metavar="OUT", help="write a page with charts that opens offline"
    )


def run(args: argparse.Namespace) -> int:
    """Measure each place in processes of its own, report what was found and what went wrong."""
    from specdec_onnx.models.pair import open_pair
    from specdec_onnx.models.places import locate
    from specdec_onnx.tui.bench.noise import Watch
    from specdec_onnx.tui.bench.output import report, require_writable, write
    from specdec_onnx.tui.compare.page import page, require_charts
    from specdec_onnx.tui.compare.session import figures, gather
    from specdec_onnx.tui.compare.spec import default_places, read_places
    from specdec_onnx.tui.compare.table import tables

    positive("--repeat", args.repeat)
    positive("--max-new-tokens", args.max_new_tokens)
    require_writable(args.json, args.html)
    if args.html:
        require_charts()
    places = read_places(args.devices or default_places())
    pair = open_pair(locate(args.pair), args.draft)
    plan, watch = _plan(args, pair), Watch()
    outcomes, complete = gather(plan, places, args.repeat, args.timeout)
    if not any(outcome.runs for each in outcomes.values() for outcome in each):
        return _nothing(outcomes, complete)
    found = figures(pair, plan, places, outcomes, watch)
    report(found, args.json, tables)
    if args.html:
        write(args.html, page(found))
    return 0 if complete else 130


def _lengths(text: str) -> tuple[int, ...]:
    if not all(word.isdecimal() and int(word) for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of token counts")
    return tuple(sorted({int(word) for word in text.split(",")}))


def _seconds(text: str) -> float:
    if not 0 < float(text) <= TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return float(text)


def _plan(args: argparse.Namespace, pair: "Pair") -> "Plan":
    from specdec_onnx.runtime.footprint import context_limit
    from specdec_onnx.tui.compare.spec import Plan

    answer = args.max_new_tokens
    room = context_limit(pair.target, None) - answer
    lengths = args.prompt_lengths or tuple(length for length in LENGTHS if length <= room) or LENGTHS[:1]
    return Plan(
        pair=str(pair.path.resolve()),
        draft=str(args.draft.resolve()) if args.draft else None,
        lengths=lengths,
        modes=tuple(mode for mode in args.modes if pair.draft or mode != "draft"),
        max_new_tokens=answer,
        context=context_limit(pair.target, max(lengths[-1], SPARE_CONTEXT) + answer),
    )


def _nothing(outcomes: dict[str, list[Any]], complete: bool) -> int:
    if not complete:
        return 130
    why = "; ".join(f"{name}: {each[-1].problem}" for name, each in outcomes.items() if each)
    raise SpecdecError("no device could run this pair", why, "specdec doctor says what this machine offers")
