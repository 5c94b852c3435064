"""A comparison from the plan to its figures."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_onnx.tui.bench.machine import describe_pair, machine
from specdec_onnx.tui.bench.noise import Watch, warnings
from specdec_onnx.tui.compare.choice import verdict
from specdec_onnx.tui.compare.figures import place_figures, plain_spread
from specdec_onnx.tui.compare.runner import Outcome, run_place
from specdec_onnx.tui.compare.spec import Place, Plan
from specdec_onnx.tui.progress import steps_on_stderr
from specdec_onnx.tui.safe import printable

if TYPE_CHECKING:
    from specdec_onnx.models.pair import Pair

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
