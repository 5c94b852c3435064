"""`specdec bench`: is it faster, and is it the same?"""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.options import MODES, add_engine_arguments, add_sampling_arguments, positive

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.sampling import Parameters
    from specdec_onnx.tui.bench.genai import Genai
    from specdec_onnx.tui.bench.prompts import Prompt

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
    from specdec_onnx.tui.bench.noise import Watch
    from specdec_onnx.tui.bench.output import report, require_writable
    from specdec_onnx.tui.bench.session import Session, forward_costs
    from specdec_onnx.tui.bench.table import tables
    from specdec_onnx.tui.options import load_engine, parameters

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
        from specdec_onnx.tui.bench import against

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
    from specdec_onnx.tui.bench.against import check_settings
    from specdec_onnx.tui.bench.genai import require_installed

    require_installed()
    check_settings(settings, devices={args.device, args.draft_device}, all_turns=args.all_turns)


def _opponent(args: argparse.Namespace, engine: "Engine") -> "Genai | nullcontext[None]":
    if args.against is None:
        return nullcontext()
    from specdec_onnx.tui.bench.against import opponent

    return opponent(engine, args.against_pair, args.threads)
