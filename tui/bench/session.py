"""A benchmark from a loaded engine to its figures."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdec_onnx.runtime.memory import peak_memory
from specdec_onnx.tui.bench.contestant import Contestant, Mode, Run
from specdec_onnx.tui.bench.genai import Genai, GenaiMode
from specdec_onnx.tui.bench.machine import describe_pair, machine
from specdec_onnx.tui.bench.measure import Round, Slot, carried, finished, in_turn, measure, orders, warm_up
from specdec_onnx.tui.bench.noise import Watch, noise
from specdec_onnx.tui.bench.prompts import Prompt
from specdec_onnx.tui.bench.report import summarize

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.sampling import Parameters


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
    from specdec_onnx.runtime.costs import TARGET_WIDTHS, measure_curve

    print("measuring the cost of a forward pass", file=sys.stderr)
    engine.forget()
    curve = measure_curve(engine.target, TARGET_WIDTHS)
    milliseconds = (round(1e3 * seconds, 3) for seconds in curve.seconds)
    return dict(zip(map(str, curve.widths), milliseconds, strict=True))
