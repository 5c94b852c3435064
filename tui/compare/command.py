"""`specdec compare`: on which device is it fastest, and from where on?"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.bench.command import modes_list
from specdec_onnx.tui.bench.machine import Watch, describe_pair, machine, warnings
from specdec_onnx.tui.cli.options import positive
from specdec_onnx.tui.compare.figures import place_figures, plain_spread, verdict
from specdec_onnx.tui.compare.places import Outcome, Place, Plan, run_place
from specdec_onnx.tui.progress import steps_on_stderr
from specdec_onnx.tui.text import printable

if TYPE_CHECKING:
    from specdec_onnx.models.pair import Pair


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
    from specdec_onnx.models.pair import locate, open_pair
    from specdec_onnx.tui.bench.command import report, require_writable, write
    from specdec_onnx.tui.bench.machine import Watch
    from specdec_onnx.tui.compare.page import page, require_charts
    from specdec_onnx.tui.compare.places import default_places, read_places
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
    from specdec_onnx.runtime.machine.footprint import context_limit
    from specdec_onnx.tui.compare.places import Plan

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


Outcomes = dict[str, list[Outcome]]


def gather(plan: Plan, places: Sequence[Place], repeat: int, timeout: float) -> tuple[Outcomes, bool]:
    """What every place found, repeat by repeat, and whether all were tried; Ctrl-C ends it early.

    Repeats go round all places, so that a machine that slows down favours none. A place that failed isn't tried again.
    """
    outcomes: Outcomes = {place.name: [] for place in places}
    with steps_on_stderr(repeat * len(places) * len(plan.lengths) * len(plan.modes)) as advance:
        try:
            for turn in range(repeat):
                for place in [*places[turn % len(places) :], *places[: turn % len(places)]]:
                    _try(plan, place, timeout, outcomes[place.name], advance)
        except KeyboardInterrupt:
            print("stopped; what was measured so far is reported", file=sys.stderr)
            return outcomes, False
    return outcomes, True


def _try(
    plan: Plan, place: Place, timeout: float, found: list[Outcome], advance: Callable[[str], None]
) -> None:
    if found and found[-1].problem:
        return
    found.append(Outcome())
    run_place(plan, place, timeout, found[-1], advance)
    if problem := found[-1].problem:
        print(printable(f"{place.name}: {problem}"), file=sys.stderr)


def figures(
    pair: "Pair", plan: Plan, places: Sequence[Place], outcomes: Outcomes, watch: Watch
) -> dict[str, Any]:
    """The report's JSON: places, what to choose for which use, where they cross, and what to doubt."""
    found = {place.name: place_figures(place, outcomes[place.name]) for place in places}
    seen = watch.findings() | {"plain_spread": plain_spread(outcomes)}
    return {
        "pair": describe_pair(pair),
        "machine": machine(),
        "settings": {
            "modes": list(plan.modes),
            "prompt_lengths": list(plan.lengths),
            "max_new_tokens": plan.max_new_tokens,
            "repeat": max(map(len, outcomes.values())),
        },
        "places": found,
        **verdict(found, plan.lengths),
        "energy": _energy(found, outcomes),
        "noise": seen | {"warnings": warnings(seen)},
    }


def _energy(places: Mapping[str, Mapping[str, Any]], outcomes: Outcomes) -> dict[str, Any]:
    """Whether energy was counted, and what to know about it."""
    finished = [outcome.finished for each in outcomes.values() for outcome in each if outcome.finished]
    problem = next((each["energy_problem"] for each in finished if each["energy_problem"]), "")
    if problem or not finished:
        return {"counted": False, "note": problem or "nothing was measured to the end"}
    note = "of the processor package, with whatever else ran on it"
    if any(set(place["runs_on"].values()) - {"cpu"} for place in places.values()):
        note += "; a graphics card of its own is not in it"
    return {"counted": True, "note": note}
