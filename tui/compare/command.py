"""`specdec compare`: on which device is it fastest, and from where on?"""

import argparse
import sys
from collections.abc import Sequence
from itertools import count, product
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import Pair, locate, open_pair
from specdec_onnx.models.progress import ProgressLine
from specdec_onnx.runtime.machine.footprint import context_limit
from specdec_onnx.tui.bench.machine import Watch, describe_machine, describe_pair, noise
from specdec_onnx.tui.cli.arguments import positive
from specdec_onnx.tui.cli.output import report, require_writable, write
from specdec_onnx.tui.compare.choice import verdict
from specdec_onnx.tui.compare.figures import plain_times, setup_figures, tables
from specdec_onnx.tui.compare.page import page, require_charts
from specdec_onnx.tui.compare.setups import Outcome, Plan, Setup, default_setups, read_setups, run_setup

LENGTHS = (64, 256, 1024)
SPARE_CONTEXT = 96
"""Room for the chat template around the shortest prompts."""

Outcomes = dict[str, list[Outcome]]
"""The outcomes of each setup, by name, one for each repeat."""


def run(args: argparse.Namespace) -> int:
    """Measure each setup in processes of its own; report the figures and what went wrong."""
    positive("--repeat", args.repeat)
    positive("--max-new-tokens", args.max_new_tokens)
    require_writable(args.json, args.html)
    if args.html:
        require_charts()
    setups = read_setups(args.devices or default_setups())
    pair = open_pair(locate(args.pair), args.draft)
    plan, watch = _plan(args, pair), Watch()
    outcomes, complete = gather(plan, setups, args.repeat, args.timeout)
    if any(outcome.runs for each in outcomes.values() for outcome in each):
        result = figures(pair, plan, setups, outcomes, watch)
        report(result, args.json, tables)
        if args.html:
            write(args.html, page(result))
    elif complete:
        why = "; ".join(f"{name}: {each[-1].problem}" for name, each in outcomes.items() if each)
        raise SpecdecError(
            "no device could run this pair", why, "specdec doctor shows what this machine offers"
        )
    return 0 if complete else 130


def _plan(args: argparse.Namespace, pair: Pair) -> Plan:
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


def gather(plan: Plan, setups: Sequence[Setup], repeat: int, timeout: float) -> tuple[Outcomes, bool]:
    """What every setup reported, repeat by repeat, and whether all were tried; Ctrl-C ends it early.

    Each repeat visits all setups, so that a machine that slows down favours none. One that failed isn't tried again.
    """
    outcomes: Outcomes = {setup.name: [] for setup in setups}
    answers, numbers = repeat * len(setups) * len(plan.lengths) * len(plan.modes), count(1)
    with ProgressLine() as progress:

        def advance(what: str) -> None:
            progress(f"answering: {what}", next(numbers), answers)

        try:
            for turn, number in product(range(repeat), range(len(setups))):
                setup = setups[(turn + number) % len(setups)]
                earlier = outcomes[setup.name]
                if earlier and earlier[-1].problem:
                    continue
                earlier.append(Outcome())
                run_setup(plan, setup, timeout, earlier[-1], advance)
                if problem := earlier[-1].problem:
                    progress.say(f"{setup.name}: {problem}")
        except KeyboardInterrupt:
            print("stopped; what was measured so far is reported", file=sys.stderr)
            return outcomes, False
    return outcomes, True


def figures(
    pair: Pair, plan: Plan, setups: Sequence[Setup], outcomes: Outcomes, watch: Watch
) -> dict[str, Any]:
    """The report's JSON: each setup, what to choose for which use, where setups cross, and what to doubt."""
    by_setup = {setup.name: setup_figures(setup, outcomes[setup.name]) for setup in setups}
    return {
        "pair": describe_pair(pair),
        "machine": describe_machine(),
        "settings": {
            "modes": list(plan.modes),
            "prompt_lengths": list(plan.lengths),
            "max_new_tokens": plan.max_new_tokens,
            "repeat": max(map(len, outcomes.values())),
        },
        "setups": by_setup,
        **verdict(by_setup, plan.lengths),
        "noise": noise(watch, plain_times(outcomes)),
    }
