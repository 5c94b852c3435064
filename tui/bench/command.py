"""`specdec bench`: is it faster, and is it the same?"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import peak_memory, replacing
from specdec_onnx.tui.bench.figures import summarize
from specdec_onnx.tui.bench.genai import Genai, GenaiMode
from specdec_onnx.tui.bench.machine import Watch, describe_pair, machine, noise
from specdec_onnx.tui.bench.prompts import Prompt
from specdec_onnx.tui.bench.runs import (
    Contestant,
    Mode,
    Round,
    Run,
    Slot,
    carried,
    finished,
    in_turn,
    measure,
    orders,
    warm_up,
)
from specdec_onnx.tui.cli.options import MODES, add_engine_arguments, add_sampling_arguments, positive
from specdec_onnx.tui.cli.streams import as_json, printable_all

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.sampling.parameters import Parameters


MAX_NEW_TOKENS = 96
OPPONENTS = ("ort-genai",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PAIR, the prompts, the modes, and where the figures go."""
    add_engine_arguments(parser)
    add_prompt_arguments(parser)
    parser.add_argument(
        "--modes",
        type=modes_list,
        metavar="A,B",
        help=f"of {', '.join(MODES)} (default: all the pair can do)",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="the median of N runs counts, and their spread is shown (default: 1)",
    )
    parser.add_argument(
        "--order-seed",
        type=int,
        default=0,
        metavar="N",
        help="prompts are asked in an order shuffled by N, one after the other with the caches as the last one left "
        "them; no prompt follows itself, so no mode finds its prompt in a cache (default: %(default)s)",
    )
    parser.add_argument(
        "--isolated",
        action="store_true",
        help="keep the file's order and empty the caches before every answer (--against does so too: the other "
        "program starts from empty caches)",
    )
    parser.add_argument(
        "--against", choices=OPPONENTS, help="let another installed program answer the same prompts in turn"
    )
    parser.add_argument(
        "--against-pair",
        type=Path,
        metavar="FOLDER",
        help="what it runs, such as an int4 export (default: PAIR)",
    )
    parser.add_argument("--json", metavar="OUT", help="write the figures to this file, or - for stdout")
    add_sampling_arguments(parser)


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Which prompts are answered, and how they are given."""
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


def run(args: argparse.Namespace) -> int:
    """Measure and report; progress goes to stderr. What was measured before a Ctrl-C is still reported."""
    from specdec_onnx.tui.bench.figures import tables
    from specdec_onnx.tui.bench.machine import Watch
    from specdec_onnx.tui.cli.options import load_engine, parameters

    positive("--limit", args.limit)
    positive("--repeat", args.repeat)
    require_writable(args.json)
    prompts, settings = _prompts(args), parameters(args, max_new_tokens=MAX_NEW_TOKENS)
    _check_opponent(args, settings)
    watch = Watch()
    engine = load_engine(args)
    modes = _available(engine, args.modes, against=args.against)
    session = Session(
        engine, prompts, modes, settings, args.raw, args.repeat, _order_seed(args, len(prompts))
    )
    costs = forward_costs(engine)
    with _opponent(args, engine) as opponent:
        rounds = session.rounds(opponent)
    figures = session.figures(rounds, costs, watch)
    if opponent is not None:
        from specdec_onnx.tui.bench import genai as against

        found = against.figures(opponent, engine, rounds, figures["modes"]["auto"])
        figures["against"] = {args.against: found}
    report(figures, args.json, tables)
    complete = len(rounds) == len(prompts) and len(rounds[0]["plain"]) == args.repeat
    return 0 if complete else 130


def modes_list(text: str) -> list[str]:
    """The list behind --modes; plain comes first, for the others are compared with it."""
    names = text.split(",")
    if unknown := set(names) - set(MODES):
        raise argparse.ArgumentTypeError(f"unknown mode {min(unknown)!r} (choose from {', '.join(MODES)})")
    return list(dict.fromkeys(["plain", *names]))


def _prompts(args: argparse.Namespace) -> "list[Prompt]":
    from specdec_onnx.tui.bench.prompts import built_in_prompts, read_prompts

    if args.prompts:
        return read_prompts(args.prompts, limit=args.limit, all_turns=args.all_turns)
    return built_in_prompts(limit=args.limit)


def _order_seed(args: argparse.Namespace, prompts: int) -> int | None:
    """What shuffles the prompts; None where the caches are to be emptied, as a single prompt asks for."""
    return None if args.isolated or args.against or prompts == 1 else args.order_seed


def _available(engine: "Engine", wanted: Sequence[str] | None, *, against: str | None) -> list[str]:
    if missing := set(wanted or ()) - set(engine.modes):
        raise SpecdecError(
            f"this pair has no mode {', '.join(sorted(missing))}",
            "a draft model is needed" if engine.pair.draft is None else "",
            f"--modes {','.join(engine.modes)}",
        )
    names = list(wanted or engine.modes)
    return list(dict.fromkeys([*names, "auto"])) if against else names


def _check_opponent(args: argparse.Namespace, settings: "Parameters") -> None:
    if args.against is None:
        if args.against_pair:
            raise SpecdecError("--against-pair needs --against", fix=f"add --against {OPPONENTS[0]}")
        return
    from specdec_onnx.tui.bench.genai import check_settings, require_installed

    require_installed()
    check_settings(settings, devices={args.device, args.draft_device}, all_turns=args.all_turns)


def _opponent(args: argparse.Namespace, engine: "Engine") -> "Genai | nullcontext[None]":
    if args.against is None:
        return nullcontext()
    from specdec_onnx.tui.bench.genai import opponent

    return opponent(engine, args.against_pair, args.threads)


def require_writable(*outs: str | Path | None) -> None:
    """SpecdecError for a file, "-" aside, that could not be written once all is measured."""
    for out in outs:
        folder = Path(out or ".").parent
        if out in (None, "-"):
            continue
        if Path(str(out)).is_dir():
            raise SpecdecError(f"cannot write {out}", "it is a folder", "name a file")
        if not folder.is_dir():
            raise SpecdecError(f"cannot write {out}", f"there is no folder {folder}", "make it first")
        if not os.access(folder, os.W_OK):
            raise SpecdecError(f"cannot write {out}", f"{folder} is closed to you", "name another file")


def report(
    figures: Mapping[str, Any], out: str | None, tables: Callable[[Mapping[str, Any]], RenderableType]
) -> None:
    """Print the tables; `out` is the JSON's file, or "-" for stdout (the tables then go to stderr)."""
    Console(stderr=out == "-", markup=False, emoji=False).print(tables(printable_all(figures)))
    text = as_json(figures, indent=2)
    if out == "-":
        print(text)
    elif out:
        write(Path(out), text)


def write(path: Path, text: str) -> None:
    """Write all or nothing, but into what is no plain file; SpecdecError where that is not possible."""
    plain = not path.is_symlink() and (path.is_file() or not path.exists())
    try:
        with replacing(path) if plain else nullcontext(path) as goal:
            goal.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise SpecdecError(f"cannot write {path}", str(error)) from error


@dataclass(frozen=True)
class Session:
    """What is measured, and how: as in use, with the prompts shuffled by `order_seed`, or with emptied caches if None."""

    engine: "Engine"
    prompts: Sequence[Prompt]
    modes: Sequence[str]
    parameters: "Parameters"
    raw: bool = False
    repeat: int = 1
    order_seed: int | None = None

    def contestants(self, genai: Genai | None) -> list[Contestant]:
        """The engine's modes and those of the other program."""
        carries = self.order_seed is not None
        own: list[Contestant] = [
            Mode(self.engine, mode, self.parameters, self.raw, carries) for mode in self.modes
        ]
        if genai is None:
            return own
        limit = self.parameters.max_new_tokens
        return own + [GenaiMode(genai, self.engine, mode, limit, self.raw) for mode in genai.modes]

    def rounds(self, genai: Genai | None = None) -> list[Round]:
        """Measure all prompts, or those before a Ctrl-C; KeyboardInterrupt when there are none."""
        from specdec_onnx.tui.progress import steps_on_stderr

        contestants = self.contestants(genai)
        found: dict[int, Round] = {
            prompt: {contestant.name: [] for contestant in contestants} for prompt in range(len(self.prompts))
        }
        with steps_on_stderr(len(self.prompts) * len(contestants) * self.repeat) as advance:

            def narrate(run: Run) -> None:
                advance(f"{run.category}, {run.mode}")

            try:
                warm_up(contestants, self.prompts[0])
                self.engine.forget()
                measure(contestants, self.prompts, self._slots(len(contestants)), found, narrate)
            except KeyboardInterrupt:
                print(f"stopped after {len(finished(found))} of {len(self.prompts)} prompts", file=sys.stderr)
        rounds = finished(found)
        if not rounds:
            raise KeyboardInterrupt
        return rounds

    def _orders(self) -> list[list[int]]:
        return orders(len(self.prompts), self.repeat, self.order_seed)

    def _slots(self, contestants: int) -> Iterator[Slot]:
        for turn, order in enumerate(self._orders()):
            if self.order_seed is None:
                yield from in_turn(order, contestants, turn)
            else:
                yield from carried(order, contestants)

    def figures(self, rounds: Sequence[Round], costs: dict[str, float], watch: Watch) -> dict[str, Any]:
        """The contract's JSON, but for what other programs did."""
        parameters = self.parameters
        return {
            "prompts": len(rounds),
            "modes": summarize(
                rounds, self.modes, comparable=parameters.greedy or parameters.seed is not None
            ),
            "machine": machine(),
            "pair": describe_pair(self.engine.pair) | self._loaded(),
            "forward_cost_ms": costs,
            "peak_memory_bytes": peak_memory(),
            "noise": noise(watch, rounds),
            "settings": {
                "max_new_tokens": parameters.max_new_tokens,
                "temperature": parameters.temperature,
                "seed": parameters.seed,
                "repeat": self.repeat,
                "caches": "emptied" if self.order_seed is None else "carried",
                "order_seed": self.order_seed,
                "order": self._orders(),
            },
        }

    def _loaded(self) -> dict[str, Any]:
        places = {role: str(place) for role, place in self.engine.placements.items()}
        return {"identity": str(self.engine.identity), "devices": places}


def forward_costs(engine: "Engine") -> dict[str, float]:
    """Milliseconds of a target pass by its width, measured now."""
    from specdec_onnx.runtime.machine.costs import TARGET_WIDTHS, measure_curve

    print("measuring the cost of a forward pass", file=sys.stderr)
    engine.forget()
    curve = measure_curve(engine.target, TARGET_WIDTHS)
    milliseconds = (round(1e3 * seconds, 3) for seconds in curve.seconds)
    return dict(zip(map(str, curve.widths), milliseconds, strict=True))
