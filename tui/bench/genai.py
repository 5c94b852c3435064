"""ONNX Runtime GenAI as an opponent: what it needs, and which folders it runs."""

from importlib.util import find_spec
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import read_json, section
from specdec_onnx.models.pair import Pair, misfits, open_pair
from specdec_onnx.runtime.engine import Engine
from specdec_onnx.tui.bench.machine import describe_pair, physical_cores
from specdec_onnx.tui.bench.opponent import Opponent, Program

PROGRAM = Program("ort-genai", "specdec_onnx.tui.bench.genai_worker", "onnxruntime-genai")


def require_installed() -> None:
    """Raise SpecdecError if onnxruntime-genai is missing."""
    if find_spec("onnxruntime_genai") is None:
        raise SpecdecError(
            "onnxruntime-genai is not installed",
            f"--against {PROGRAM.name} runs the same prompts in it",
            "pip install onnxruntime-genai",
        )


def opponent(engine: Engine, folder: Path | None, threads: int) -> Opponent:
    """Start the program with the engine's pair, or with another export of it in `folder`.

    `threads` 0 means one for each physical core, as for the engine; the program's own default is one thread.
    """
    pair = engine.pair
    if folder:
        pair = open_pair(folder)
        if problems := misfits(engine.pair.target, pair.target):
            raise SpecdecError(
                f"{folder} is another model", "; ".join(problems), "give an export of the same model"
            )
    return Opponent(
        PROGRAM,
        {"target": str(require_config(pair.target.path)), "pair": _composite(pair)},
        pair=describe_pair(pair),
        threads=threads or physical_cores(),
        same_weights=pair.target.graph.samefile(engine.pair.target.graph),
    )


def require_config(path: Path) -> Path:
    """A model folder that onnxruntime-genai can open. Raises SpecdecError for another one."""
    if not (path / "genai_config.json").is_file():
        raise SpecdecError(
            f"onnxruntime-genai cannot open {path}", "it has no genai_config.json", "export it again"
        )
    return path


def _composite(pair: Pair) -> str | None:
    """The folder whose genai_config.json names both models of this pair, if there is one."""
    model = section(read_json(pair.path / "genai_config.json"), "model")
    named = bool(section(model, "draft").get("filename"))
    own = pair.draft is not None and pair.draft.path.is_relative_to(pair.path)
    return str(pair.path) if named and own else None
