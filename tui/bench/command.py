"""`specdec bench`: is it faster, and is it the same?"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import locate, open_pair
from specdec_onnx.models.progress import Progress, ProgressLine
from specdec_onnx.models.system import peak_memory
from specdec_onnx.runtime import kernels
from specdec_onnx.runtime.engine import Engine
from specdec_onnx.runtime.machine.footprint import check_memory, context_limit, footprints
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.tui.bench import opponent
from specdec_onnx.tui.bench.figures import kernel_ratios, summarize, tables
from specdec_onnx.tui.bench.long_prompts import long_prompts
from specdec_onnx.tui.bench.machine import Watch, describe_machine, describe_pair, noise
from specdec_onnx.tui.bench.opponent import Opponent
from specdec_onnx.tui.bench.prompts import Prompt, built_in_prompts, read_prompts
from specdec_onnx.tui.bench.runs import (
    WARM_UP_TOKENS,
    Contestant,
    Round,
    Run,
    Slot,
    alternating,
    answer,
    finished,
    forward_cost_ms,
    in_turn,
    mode_name,
    orders,
)
from specdec_onnx.tui.cli.arguments import BENCH_TOKENS, positive
from specdec_onnx.tui.cli.engine import load_engine, parameters
from specdec_onnx.tui.cli.output import report, require_writable

LONG_READING = 1024
"""Tokens of a prompt whose reading is shown."""


def run(args: argparse.Namespace) -> int:
    """Measure and report; progress goes to stderr. After a Ctrl-C, what was measured is still reported."""
    positive("--limit", args.limit)
    positive("--repeat", args.repeat)
    require_writable(args.json)
    prompts, settings = _prompts(args), parameters(args, max_new_tokens=BENCH_TOKENS)
    if args.kernels and {args.device, args.draft_device} - {"cpu", None}:
        raise SpecdecError("--kernels and --device exclude each other", "only the CPU has two kernel sets")
    opponent.check(args, settings)
    watch = Watch()
    engines = _engines(args)
    if args.long:
        _check_context(engines[""], args, prompts, settings.max_new_tokens)
    isolated = args.isolated or args.long or args.against or len(prompts) == 1
    benchmark = Benchmark(
        engines=engines,
        prompts=prompts,
        modes=_modes(engines[""], args.modes, against=args.against),
        parameters=settings,
        raw=args.raw,
        repeat=args.repeat,
        order_seed=None if isolated else args.order_seed,
        read_once=args.long and not args.isolated,
    )
    forward_cost = {name: forward_cost_ms(engine) for name, engine in engines.items()}
    with closing(opponent.start(engines[""], args)) if args.against else nullcontext() as program:
        rounds = benchmark.rounds(program)
    figures = benchmark.figures(rounds, forward_cost, watch)
    if program is not None:
        figures["against"] = {args.against: opponent.figures(program, rounds, figures["modes"]["auto"])}
    report(figures, args.json, tables)
    complete = len(rounds) == len(prompts) and len(rounds[0]["plain"]) == args.repeat
    return 0 if complete else 130


def _prompts(args: argparse.Namespace) -> list[Prompt]:
    if args.prompts and args.long:
        raise SpecdecError("--prompts and --long exclude each other", "both say which prompts to answer")
    if args.long:
        return long_prompts()[: args.limit]
    if args.prompts:
        return read_prompts(args.prompts, limit=args.limit, all_turns=args.all_turns)
    return built_in_prompts(limit=args.limit)


def _check_context(engine: Engine, args: argparse.Namespace, prompts: Sequence[Prompt], most: int) -> None:
    """Raise SpecdecError unless the longest of the long prompts and its answer fit."""
    longest = max(len(prompt.tokens(engine.pair.target, raw=args.raw)) for prompt in prompts)
    if longest + most > engine.context:
        what = f"--long needs a context of {longest + most} tokens"
        raise SpecdecError(
            what, f"this is {engine.context}", f"--context {longest + most}, or a lower --limit"
        )


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


def _engines(args: argparse.Namespace) -> dict[str, Engine]:
    """The engine whose modes are listed by their plain names as "", and those with other kernels by these names."""
    if not args.kernels:
        return {"": load_engine(args, prefix_memory=0)}
    if len(args.kernels) > 1:
        _check_room(args)
    engines: dict[str, Engine] = {}
    for name in args.kernels:
        with kernels.selected(kernels.demanded() if name == "specdec" else "off") as chosen:
            if name == "specdec" and not chosen.name:
                raise SpecdecError(
                    "our kernels are not available here", chosen.absent, "see `specdec doctor`"
                )
            engines[name if engines else ""] = load_engine(args, prefix_memory=0)
    return engines


def _check_room(args: argparse.Namespace) -> None:
    """Raise SpecdecError if memory is insufficient for one engine of each kernel set."""
    pair = open_pair(locate(args.pair), args.draft)
    each = footprints(pair.models, args.context, half_cache=args.cache == "auto")
    needs = {f"{role} ({name})": need for name in args.kernels for role, need in each.items()}
    check_memory(needs, context_limit(pair.target, args.context))


def _show_reading(line: ProgressLine, done: int, total: int) -> None:
    """How far a prompt is read, if this takes a while."""
    if total >= LONG_READING:
        line.show(f"{100 * done // total:3d} %  of a prompt of {total} tokens read")


@dataclass(frozen=True)
class Benchmark:
    """What is measured, and how.

    With an `order_seed`, prompts are shuffled and caches kept between answers, as in use; with None, prompts keep their
    order and the caches are emptied before every answer. All `engines` run the same modes: the first one's name is "",
    the others have the names of their kernels. With `read_once` (and no seed), repeats of a prompt follow each other, and
    every contestant answers all but its first from its cache.
    """

    engines: Mapping[str, Engine]
    prompts: Sequence[Prompt]
    modes: Sequence[str]
    parameters: Parameters
    raw: bool = False
    repeat: int = 1
    order_seed: int | None = None
    read_once: bool = False

    def rounds(self, program: Opponent | None = None) -> list[Round]:
        """Measure all prompts, or those before a Ctrl-C; KeyboardInterrupt if there are none."""
        line = ProgressLine()
        contestants = self._contestants(program, line)
        rounds: list[Round] = [{name: [] for name in contestants} for _ in self.prompts]
        shortest = min(self.prompts, key=Prompt.length)
        try:
            with line as progress:
                for contestant in contestants.values():  # the first passes allocate
                    contestant(shortest, WARM_UP_TOKENS, False)
                for engine in self.engines.values():
                    engine.forget()
                self._measure(contestants, rounds, progress)
        except KeyboardInterrupt:
            print(f"stopped after {len(finished(rounds))} of {len(self.prompts)} prompts", file=sys.stderr)
        if measured := finished(rounds):
            return measured
        raise KeyboardInterrupt

    def _measure(
        self, contestants: Mapping[str, Contestant], rounds: Sequence[Round], progress: Progress
    ) -> None:
        """Add each run to the round of its prompt."""
        names, answers = list(contestants), len(self.prompts) * len(contestants) * self.repeat
        for done, (prompt, number) in enumerate(self._slots(len(names))):
            name, what = names[number], f"answering: {self.prompts[prompt].category}, {names[number]}"
            progress(what, done, answers)
            again = self.read_once and bool(rounds[prompt][name])
            run = contestants[name](self.prompts[prompt], self.parameters.max_new_tokens, again)
            rounds[prompt][name].append(replace(run, again=again))
            progress(what, done + 1, answers)

    def _contestants(self, program: Opponent | None, line: ProgressLine) -> dict[str, Contestant]:
        settings: dict[str, Any] = {"parameters": self.parameters, "raw": self.raw}
        settings["on_progress"] = partial(_show_reading, line) if sys.stderr.isatty() else None
        contestants: dict[str, Contestant] = {
            mode_name(mode, name): partial(self._answer, engine, mode, settings)
            for mode in self.modes
            for name, engine in self.engines.items()
        }
        if program is not None:
            for mode in program.modes:
                contestants[program.named(mode)] = partial(program.answer, self.engines[""], mode, self.raw)
        return contestants

    def _answer(
        self,
        engine: Engine,
        mode: str,
        settings: Mapping[str, Any],
        prompt: Prompt,
        most: int,
        again: bool,
    ) -> Run:
        keep = again or self.order_seed is not None
        return answer(engine, mode, prompt, most, keep_caches=keep, **settings)

    def _orders(self) -> list[list[int]]:
        return orders(len(self.prompts), self.repeat, self.order_seed)

    def _slots(self, contestants: int) -> Iterator[Slot]:
        if self.read_once:
            for prompt, repeat in product(range(len(self.prompts)), range(self.repeat)):
                yield from in_turn([prompt], contestants, repeat)
            return
        for repeat, order in enumerate(self._orders()):
            if self.order_seed is None:
                yield from in_turn(order, contestants, repeat)
            else:
                yield from alternating(order, contestants)

    def _caches(self) -> str:
        if self.read_once:
            return "kept for repeats"
        return "emptied" if self.order_seed is None else "carried"

    def figures(
        self, rounds: Sequence[Round], forward_cost: Mapping[str, Mapping[str, float]], watch: Watch
    ) -> dict[str, Any]:
        """The report's JSON, without the other program's figures; `forward_cost` is by kernels, as `engines`."""
        parameters, engine = self.parameters, self.engines[""]
        comparable = parameters.greedy or parameters.seed is not None
        modes: dict[str, Any] = {}
        for name in self.engines:
            names = [mode_name(mode, name) for mode in self.modes]
            modes |= summarize(rounds, names, comparable=comparable)
        compared = {
            name: {"speed_ratio": kernel_ratios(modes, self.modes, name), "forward_cost_ms": cost}
            for name, cost in forward_cost.items()
            if name
        }
        devices = {role: str(placement) for role, placement in engine.placements.items()}
        return {
            "prompts": len(rounds),
            "modes": modes,
            **({"kernels": compared} if compared else {}),
            "machine": describe_machine(),
            "pair": describe_pair(engine.pair) | {"identity": str(engine.identity), "devices": devices},
            "forward_cost_ms": forward_cost[""],
            "peak_memory_bytes": peak_memory(),
            "noise": noise(watch, [[run.seconds_per_token for run in round_["plain"]] for round_ in rounds]),
            "settings": {
                "max_new_tokens": parameters.max_new_tokens,
                "temperature": parameters.temperature,
                "seed": parameters.seed,
                "repeat": self.repeat,
                "caches": self._caches(),
                "order_seed": self.order_seed,
                "order": self._orders(),
            },
        }
