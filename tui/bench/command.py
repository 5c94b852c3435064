"""`specdec bench`: is it faster, and is it the same?"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.progress import ProgressLine
from specdec_onnx.models.system import peak_memory
from specdec_onnx.runtime.engine import Engine
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.tui.bench import genai
from specdec_onnx.tui.bench.figures import summarize, tables
from specdec_onnx.tui.bench.machine import Watch, describe_machine, describe_pair, noise
from specdec_onnx.tui.bench.prompts import Prompt, built_in_prompts, read_prompts
from specdec_onnx.tui.bench.runs import (
    WARM_UP_TOKENS,
    Contestant,
    Mode,
    Round,
    Slot,
    alternating,
    finished,
    forward_cost_ms,
    in_turn,
    orders,
)
from specdec_onnx.tui.cli.arguments import BENCH_TOKENS, OPPONENTS, positive
from specdec_onnx.tui.cli.engine import load_engine, parameters
from specdec_onnx.tui.cli.output import report, require_writable


def run(args: argparse.Namespace) -> int:
    """Measure and report; progress goes to stderr. After a Ctrl-C, what was measured is still reported."""
    positive("--limit", args.limit)
    positive("--repeat", args.repeat)
    require_writable(args.json)
    prompts, settings = _prompts(args), parameters(args, max_new_tokens=BENCH_TOKENS)
    _check_opponent(args, settings)
    watch = Watch()
    engine = load_engine(args)
    isolated = args.isolated or args.against or len(prompts) == 1
    benchmark = Benchmark(
        engine=engine,
        prompts=prompts,
        modes=_modes(engine, args.modes, against=args.against),
        parameters=settings,
        raw=args.raw,
        repeat=args.repeat,
        order_seed=None if isolated else args.order_seed,
    )
    forward_cost = forward_cost_ms(engine)
    with (
        genai.opponent(engine, args.against_pair, args.threads) if args.against else nullcontext() as opponent
    ):
        rounds = benchmark.rounds(opponent)
    figures = benchmark.figures(rounds, forward_cost, watch)
    if opponent is not None:
        figures["against"] = {args.against: genai.figures(opponent, engine, rounds, figures["modes"]["auto"])}
    report(figures, args.json, tables)
    complete = len(rounds) == len(prompts) and len(rounds[0]["plain"]) == args.repeat
    return 0 if complete else 130


def _prompts(args: argparse.Namespace) -> list[Prompt]:
    if args.prompts:
        return read_prompts(args.prompts, limit=args.limit, all_turns=args.all_turns)
    return built_in_prompts(limit=args.limit)


def _modes(engine: Engine, wanted: Sequence[str] | None, *, against: str | None) -> list[str]:
    """The modes to measure; a comparison with another program needs auto."""
    if missing := set(wanted or ()) - set(engine.modes):
        raise SpecdecError(
            f"this pair has no mode {', '.join(sorted(missing))}",
            "a draft model is needed" if engine.pair.draft is None else "",
            f"--modes {','.join(engine.modes)}",
        )
    names = list(wanted or engine.modes)
    return list(dict.fromkeys([*names, "auto"])) if against else names


def _check_opponent(args: argparse.Namespace, settings: Parameters) -> None:
    if args.against:
        genai.require_installed()
        genai.check_settings(settings, devices={args.device, args.draft_device}, all_turns=args.all_turns)
    elif args.against_pair:
        raise SpecdecError("--against-pair needs --against", fix=f"add --against {OPPONENTS[0]}")


@dataclass(frozen=True)
class Benchmark:
    """What is measured, and how.

    With an `order_seed`, prompts are shuffled and caches kept between answers, as in use; with None, prompts keep their
    order and the caches are emptied before every answer.
    """

    engine: Engine
    prompts: Sequence[Prompt]
    modes: Sequence[str]
    parameters: Parameters
    raw: bool = False
    repeat: int = 1
    order_seed: int | None = None

    def rounds(self, opponent: genai.Genai | None = None) -> list[Round]:
        """Measure all prompts, or those before a Ctrl-C; KeyboardInterrupt if there are none."""
        contestants = self._contestants(opponent)
        rounds: dict[int, Round] = {
            prompt: {contestant.name: [] for contestant in contestants} for prompt in range(len(self.prompts))
        }
        try:
            for contestant in contestants:  # the first passes allocate
                contestant.answer(self.prompts[0], WARM_UP_TOKENS)
            self.engine.forget()
            self._measure(contestants, rounds)
        except KeyboardInterrupt:
            print(f"stopped after {len(finished(rounds))} of {len(self.prompts)} prompts", file=sys.stderr)
        if measured := finished(rounds):
            return measured
        raise KeyboardInterrupt

    def _measure(self, contestants: Sequence[Contestant], rounds: Mapping[int, Round]) -> None:
        """Add each run to the round of its prompt."""
        answers = len(self.prompts) * len(contestants) * self.repeat
        with ProgressLine() as progress:
            for done, (prompt, contestant) in enumerate(self._slots(len(contestants)), start=1):
                run = contestants[contestant].answer(self.prompts[prompt])
                rounds[prompt][run.mode].append(run)
                progress(f"answering: {run.category}, {run.mode}", done, answers)

    def _contestants(self, opponent: genai.Genai | None) -> list[Contestant]:
        keep = self.order_seed is not None
        own: list[Contestant] = [
            Mode(self.engine, mode, self.parameters, self.raw, keep) for mode in self.modes
        ]
        if opponent is None:
            return own
        limit = self.parameters.max_new_tokens
        return own + [
            genai.GenaiMode(opponent, self.engine, mode, limit, self.raw) for mode in opponent.modes
        ]

    def _orders(self) -> list[list[int]]:
        return orders(len(self.prompts), self.repeat, self.order_seed)

    def _slots(self, contestants: int) -> Iterator[Slot]:
        for repeat, order in enumerate(self._orders()):
            if self.order_seed is None:
                yield from in_turn(order, contestants, repeat)
            else:
                yield from alternating(order, contestants)

    def figures(
        self, rounds: Sequence[Round], forward_cost: Mapping[str, float], watch: Watch
    ) -> dict[str, Any]:
        """The report's JSON, without the other program's figures."""
        parameters, engine = self.parameters, self.engine
        comparable = parameters.greedy or parameters.seed is not None
        return {
            "prompts": len(rounds),
            "modes": summarize(rounds, self.modes, comparable=comparable),
            "machine": describe_machine(),
            "pair": describe_pair(engine.pair)
            | {
                "identity": str(engine.identity),
                "devices": {role: str(placement) for role, placement in engine.placements.items()},
            },
            "forward_cost_ms": forward_cost,
            "peak_memory_bytes": peak_memory(),
            "noise": noise(watch, [[run.seconds_per_token for run in round_["plain"]] for round_ in rounds]),
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
