"""`specdec bench`: is it faster, and is it the same?"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.options import MODES, add_engine_arguments, add_sampling_arguments

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.sampling import Parameters
    from specdec_onnx.tui.bench.measure import Round, Run
    from specdec_onnx.tui.bench.prompts import Prompt

MAX_NEW_TOKENS = 96


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PAIR, the prompts, the modes, and where the figures go."""
    add_engine_arguments(parser)
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="JSON lines, also .gz (default: 27 built-in prompts in nine categories; --limit 9 takes one of each)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    parser.add_argument(
        "--all-turns", action="store_true", help="answer every turn of a conversation, not the first"
    )
    parser.add_argument(
        "--raw", action="store_true", help="give prompts to the model without the chat template"
    )
    parser.add_argument(
        "--modes", type=_modes, metavar="A,B", help=f"of {', '.join(MODES)} (default: all the pair can do)"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="the median of N runs counts (default: 1)"
    )
    parser.add_argument("--json", metavar="OUT", help="write the figures to this file, or - for stdout")
    add_sampling_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and report; progress goes to stderr. What was measured before a Ctrl-C is still reported."""
    from specdec_onnx.tui.bench.output import report
    from specdec_onnx.tui.bench.prompts import built_in_prompts, read_prompts
    from specdec_onnx.tui.options import load_engine, parameters

    _positive("--limit", args.limit)
    _positive("--repeat", args.repeat)
    if args.prompts:
        prompts = read_prompts(args.prompts, limit=args.limit, all_turns=args.all_turns)
    else:
        prompts = built_in_prompts(limit=args.limit)
    settings = parameters(args, max_new_tokens=MAX_NEW_TOKENS, seed=0)
    engine = load_engine(args)
    modes = _available(engine, args.modes)
    costs = _costs(engine)
    rounds, complete = _measure(engine, prompts, modes, settings, args)
    report(_figures(engine, rounds, settings, costs), args.json)
    return 0 if complete else 130


def _modes(text: str) -> list[str]:
    """The list behind --modes; plain comes first, for the others are compared with it."""
    names = text.split(",")
    if unknown := set(names) - set(MODES):
        raise argparse.ArgumentTypeError(f"unknown mode {min(unknown)!r} (choose from {', '.join(MODES)})")
    return list(dict.fromkeys(["plain", *names]))


def _positive(flag: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise SpecdecError(f"{flag} must be at least 1, not {value}")


def _available(engine: "Engine", wanted: Sequence[str] | None) -> list[str]:
    if missing := set(wanted or ()) - set(engine.modes):
        raise SpecdecError(
            f"this pair has no mode {', '.join(sorted(missing))}",
            "a draft model is needed" if engine.pair.draft is None else "",
            f"--modes {','.join(engine.modes)}",
        )
    return list(wanted or engine.modes)


def _costs(engine: "Engine") -> dict[str, float]:
    from specdec_onnx.runtime.costs import TARGET_WIDTHS, measure_curve

    print("measuring the cost of a forward pass", file=sys.stderr)
    engine.forget()
    curve = measure_curve(engine.target, TARGET_WIDTHS)
    milliseconds = (round(1e3 * seconds, 3) for seconds in curve.seconds)
    return dict(zip(map(str, curve.widths), milliseconds, strict=True))


def _measure(
    engine: "Engine",
    prompts: "Sequence[Prompt]",
    modes: Sequence[str],
    settings: "Parameters",
    args: argparse.Namespace,
) -> "tuple[list[Round], bool]":
    """The rounds, and whether all prompts were measured."""
    from specdec_onnx.tui.bench.measure import measure
    from specdec_onnx.tui.progress import steps_on_stderr

    rounds: list[Round] = []
    with steps_on_stderr(len(prompts) * len(modes) * args.repeat) as advance:

        def narrate(run: "Run") -> None:
            advance(f"{run.category}, {run.mode}")

        try:
            rounds.extend(
                measure(engine, prompts, modes, settings, raw=args.raw, repeat=args.repeat, on_run=narrate)
            )
        except KeyboardInterrupt:
            print(f"stopped after {len(rounds)} of {len(prompts)} prompts", file=sys.stderr)
    if not rounds:
        raise KeyboardInterrupt
    return rounds, len(rounds) == len(prompts)


def _figures(
    engine: "Engine", rounds: "Sequence[Round]", settings: "Parameters", costs: dict[str, float]
) -> dict[str, Any]:
    from specdec_onnx.tui.bench.machine import describe_pair, machine
    from specdec_onnx.tui.bench.report import summarize

    return {
        "prompts": len(rounds),
        "modes": summarize(rounds, greedy=settings.greedy),
        "machine": machine(),
        "pair": describe_pair(engine.pair) | {"identity": str(engine.identity)},
        "forward_cost_ms": costs,
        "settings": {"max_new_tokens": settings.max_new_tokens, "temperature": settings.temperature},
    }
