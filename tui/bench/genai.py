"""ONNX Runtime GenAI as a contestant: the same prompts as token ids, in a process of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.layout import read_json, section
from specdec_onnx.tui.bench.contestant import Run
from specdec_onnx.tui.bench.prompts import Prompt
from specdec_onnx.tui.child import Child

if TYPE_CHECKING:
    from specdec_onnx.models.pair import Pair
    from specdec_onnx.runtime.engine import Engine

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
        from specdec_onnx.runtime.prompt import prompt_tokens
        from specdec_onnx.runtime.statistics import Statistics

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
