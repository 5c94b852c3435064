"""Another program as a contestant: it answers the same prompts, as token ids, in a process of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.engine import Engine
from specdec_onnx.runtime.generate import Statistics
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.text.prompt import prompt_tokens
from specdec_onnx.tui.bench.figures import identical, summarize
from specdec_onnx.tui.bench.prompts import Prompt
from specdec_onnx.tui.bench.runs import Round, Run
from specdec_onnx.tui.child import Child

UNKNOWN = {
    *("drafted_by_position", "acceptance_by_position", "acceptance_by_source"),
    *("draft_seconds", "verify_seconds", "host_seconds"),
}
"""The figures of a mode that the other program cannot tell."""


def check_settings(name: str, settings: Parameters, *, devices: set[str | None], all_turns: bool) -> None:
    """Raise SpecdecError for settings that we cannot share with the program called `name`."""
    if settings != Parameters(max_new_tokens=settings.max_new_tokens, seed=settings.seed):
        raise SpecdecError(
            f"--against {name} compares greedy answers", "the programs sample and stop in different ways"
        )
    if devices - {"cpu", None} or all_turns:
        flag = "--all-turns" if all_turns else "--device"
        raise SpecdecError(
            f"--against {name} and {flag} exclude each other", "it runs on the CPU and answers one turn"
        )


@dataclass(frozen=True, slots=True)
class Program:
    """A program to compare with: its name for --against, the module that runs it, and its name in messages.

    The worker gets this many seconds of `patience` to end what it started.
    """

    name: str
    worker: str
    title: str
    patience: float = 0.0


class Opponent:
    """A running program with its models loaded, until it is closed. Raises SpecdecError if it fails.

    Attributes:
        pair: what it runs, as in `describe_pair`; `same_weights` says whether these are the engine's own files.
        modes: the ways to speculate that it allows, with their settings.
        peak_memory_bytes: the worker's, after the latest answer; None if the program does not tell.
    """

    def __init__(
        self,
        program: Program,
        request: Mapping[str, Any],
        *,
        pair: Mapping[str, Any],
        threads: int,
        same_weights: bool = False,
    ) -> None:
        self._worker = Child(program.worker)
        self.program, self.pair, self.threads, self.same_weights = program, pair, threads, same_weights
        self.peak_memory_bytes: int | None = None
        try:
            loaded = self._exchange({**request, "threads": threads})
        except BaseException:
            self.close()
            raise
        self.version: str = loaded["version"]
        self.modes: Mapping[str, Any] = loaded["modes"]

    def close(self) -> None:
        """End the program, whatever it is doing."""
        self._worker.close(self.program.patience)

    def named(self, mode: str) -> str:
        """What the figures of `mode` are listed under: `ort-genai ngram` and so on."""
        return f"{self.program.name} {mode}"

    def answer(self, engine: Engine, mode: str, raw: bool, prompt: Prompt, most: int) -> Run:
        """Let the program answer the prompt's first turn greedily; it gets the engine's token ids."""
        tokens = prompt_tokens(engine.pair.target, prompt.turns[0], raw=raw)
        room = min(len(tokens) + most, engine.context)
        reply = self._exchange({"mode": mode, "tokens": tokens, "max_length": room})
        self.peak_memory_bytes = reply.pop("peak_memory_bytes", None)
        answer = tuple(reply.pop("tokens"))
        counts = {"prompt_tokens": len(tokens), "new_tokens": len(answer)} | reply
        return Run(prompt.category, answer, (Statistics(**counts),))

    def _exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self._worker.tell(message)
        reply = self._worker.hear() or {"error": self._worker.last_words()}
        if "error" in reply:
            raise SpecdecError(f"{self.program.title} failed", reply["error"])
        return reply


def figures(opponent: Opponent, rounds: Sequence[Round], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The report's `against.NAME`; `ours` are the figures of the engine's auto mode.

    `speed_ratio` is our auto over its best mode, in decoded tokens per second. `identical_to_plain` compares with its own
    plain decoding, `identical_to_ours` with ours: None if it runs other weights, whose answers may differ.
    """
    names = {mode: opponent.named(mode) for mode in opponent.modes}
    summaries = summarize(rounds, names.values(), comparable=True)
    modes: dict[str, Any] = {}
    for mode, name in names.items():
        same = sum(identical(round_, name, "plain") for round_ in rounds)
        modes[mode] = {key: value for key, value in summaries[name].items() if key not in UNKNOWN}
        modes[mode]["settings"] = opponent.modes[mode]
        modes[mode]["identical_to_ours"] = same if opponent.same_weights else None
    best = max(modes, key=lambda mode: modes[mode]["decode_tokens_per_second"])
    whole = max(mode["end_to_end_tokens_per_second"] for mode in modes.values())
    return {
        "version": opponent.version,
        "threads": opponent.threads,
        "pair": opponent.pair,
        "modes": modes,
        "best_mode": best,
        "speed_ratio": _ratio(ours["decode_tokens_per_second"], modes[best]["decode_tokens_per_second"]),
        "end_to_end_ratio": _ratio(ours["end_to_end_tokens_per_second"], whole),
        "peak_memory_bytes": opponent.peak_memory_bytes,
    }


def _ratio(ours: float, theirs: float) -> float | None:
    return round(ours / theirs, 3) if theirs else None
