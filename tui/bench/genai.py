"""ONNX Runtime GenAI as a contestant: the same prompts as token ids, in a process of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import read_json, section
from specdec_onnx.models.pair import compatibility, open_pair
from specdec_onnx.tui.bench.figures import identical, summarize
from specdec_onnx.tui.bench.genai_worker import SETTINGS
from specdec_onnx.tui.bench.machine import describe_pair, physical_cores
from specdec_onnx.tui.bench.prompts import Prompt
from specdec_onnx.tui.bench.runs import Round, Run
from specdec_onnx.tui.child import Child

if TYPE_CHECKING:
    from specdec_onnx.models.pair import Pair
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.sampling.parameters import Parameters


NAME = "ort-genai"
_WORKER = "specdec_onnx.tui.bench.genai_worker"


def require_installed() -> None:
    """Raise SpecdecError when there is no onnxruntime-genai to compare with."""
    if find_spec("onnxruntime_genai") is None:
        raise SpecdecError(
            "onnxruntime-genai is not installed",
            "--against ort-genai runs the same prompts in it",
            "pip install onnxruntime-genai",
        )


class Genai:
    """A running worker with a pair loaded; a context manager. Raises SpecdecError when the worker fails.

    `modes` are those that the pair allows, `peak_memory_bytes` is of the worker.
    """

    def __init__(self, pair: "Pair", threads: int) -> None:
        wanted = {"target": str(_folder(pair.target.path)), "pair": _composite(pair), "threads": threads}
        self._worker = Child(_WORKER)
        self.pair, self.threads = pair, threads
        self.peak_memory_bytes: int | None = None
        try:
            loaded = self._exchange(wanted)
        except BaseException:
            self.close()
            raise
        self.version, self.modes = str(loaded["version"]), tuple(loaded["modes"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        self._worker.close()

    def answer(self, mode: str, tokens: list[int], max_length: int) -> dict[str, Any]:
        """Let the worker continue `tokens` greedily up to `max_length` tokens in all."""
        found = self._exchange({"mode": mode, "tokens": tokens, "max_length": max_length})
        self.peak_memory_bytes = found.pop("peak_memory_bytes")
        return found

    def _exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self._worker.tell(message)
        reply = self._worker.hear() or {"error": self._worker.last_words()}
        if "error" in reply:
            raise SpecdecError("onnxruntime-genai failed", reply["error"])
        return reply


@dataclass(frozen=True)
class GenaiMode:
    """One way to speculate of a running worker; the prompt's tokens are the engine's own."""

    genai: Genai
    engine: "Engine"
    mode: str
    max_new_tokens: int
    raw: bool = False

    @property
    def name(self) -> str:
        """`ort-genai ngram` and so on."""
        return f"{NAME} {self.mode}"

    def answer(self, prompt: Prompt, most: int | None = None) -> Run:
        """Answer the prompt's first turn."""
        from specdec_onnx.runtime.generate import Statistics
        from specdec_onnx.runtime.text.prompt import prompt_tokens

        tokens = prompt_tokens(self.engine.pair.target, prompt.turns[0], raw=self.raw)
        room = min(len(tokens) + (most or self.max_new_tokens), self.engine.context)
        found = self.genai.answer(self.mode, tokens, room)
        answer = tuple(found.pop("tokens"))
        statistics = Statistics(prompt_tokens=len(tokens), new_tokens=len(answer), **found)
        return Run(prompt.category, self.name, answer, (statistics,))


def _folder(path: Path) -> Path:
    """A model folder that onnxruntime-genai can open."""
    if not (path / "genai_config.json").is_file():
        raise SpecdecError(
            f"onnxruntime-genai cannot open {path}", "it has no genai_config.json", "export it again"
        )
    return path


def _composite(pair: "Pair") -> str | None:
    """The folder whose genai_config.json names the models of this pair; None where there is none."""
    model = section(read_json(pair.path / "genai_config.json"), "model")
    named = bool(section(model, "draft").get("filename"))
    own = pair.draft is not None and pair.draft.path.is_relative_to(pair.path)
    return str(pair.path) if named and own else None


KEPT = (
    "decode_tokens_per_second",
    "end_to_end_tokens_per_second",
    "time_to_first_token_ms",
    "tokens_per_round",
    "acceptance_rate",
    "speedup",
    "identical_to_plain",
    "spread",
    "new_tokens",
    "decode_seconds",
    "prefill_seconds",
)
"""What of a mode's figures another program can tell."""


def check_settings(settings: "Parameters", *, devices: set[str | None], all_turns: bool) -> None:
    """Raise SpecdecError for what both programs cannot do alike."""
    from specdec_onnx.runtime.sampling.parameters import Parameters

    if settings != Parameters(max_new_tokens=settings.max_new_tokens, seed=settings.seed):
        raise SpecdecError(
            f"--against {NAME} compares greedy answers", "sampling and stop texts would differ by design"
        )
    if devices - {"cpu", None} or all_turns:
        flag = "--all-turns" if all_turns else "--device"
        raise SpecdecError(
            f"--against {NAME} and {flag} exclude each other", "it is run on the CPU, turn by turn"
        )


def opponent(engine: "Engine", folder: Path | None, threads: int) -> Genai:
    """Start the other program with the engine's pair, or with another export of it in `folder`.

    `threads` 0 means the physical cores, as it does for the engine: by itself the program would take one.
    """
    pair = engine.pair
    if folder:
        pair = open_pair(folder)
        if problems := compatibility(engine.pair.target, pair.target).problems:
            raise SpecdecError(
                f"{folder} is another model", "; ".join(problems), "give an export of the same model"
            )
    return Genai(pair, threads or physical_cores())


def figures(
    genai: Genai, engine: "Engine", rounds: Sequence[Round], ours: Mapping[str, Any]
) -> dict[str, Any]:
    """The contract's `against.ort-genai`; `ours` are the figures of the engine's auto mode.

    `speed_ratio` is our auto over its best mode, in decoded tokens per second. `identical_to_plain` compares with its own
    plain decoding, `identical_to_ours` with ours: None if it runs another export, whose answers differ by right.
    """
    names = {mode: f"{NAME} {mode}" for mode in genai.modes}
    summaries = summarize(rounds, names.values(), comparable=True)
    same_pair = genai.pair.target.graph.samefile(engine.pair.target.graph)
    modes = {mode: _mode(summaries[name], mode) for mode, name in names.items()}
    for mode, name in names.items():
        same = sum(identical(round_, name, "plain") for round_ in rounds)
        modes[mode]["identical_to_ours"] = same if same_pair else None
    best = max(modes, key=lambda mode: modes[mode]["decode_tokens_per_second"])
    whole = max(mode["end_to_end_tokens_per_second"] for mode in modes.values())
    return {
        "version": genai.version,
        "threads": genai.threads,
        "pair": describe_pair(genai.pair),
        "modes": modes,
        "best_mode": best,
        "speed_ratio": _ratio(ours["decode_tokens_per_second"], modes[best]["decode_tokens_per_second"]),
        "end_to_end_ratio": _ratio(ours["end_to_end_tokens_per_second"], whole),
        "peak_memory_bytes": genai.peak_memory_bytes,
    }


def _mode(summary: Mapping[str, Any], mode: str) -> dict[str, Any]:
    return {key: summary[key] for key in KEPT} | {"settings": SETTINGS[mode]}


def _ratio(ours: float, theirs: float) -> float | None:
    return round(ours / theirs, 3) if theirs else None
