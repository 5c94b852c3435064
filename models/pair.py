"""A target model and, beside it, the draft that may propose tokens for it."""

from dataclasses import dataclass
from pathlib import Path

from specdec_onnx.models.compatibility import Compatibility, compatibility, require_compatible
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.models.layout import inside, read_json, section

__all__ = ["Compatibility", "Pair", "compatibility", "members", "open_pair"]


@dataclass(frozen=True)
class Pair:
    """A checked pair; `draft` is None for a single model. `path` is the folder that was opened."""

    path: Path
    target: ModelFolder
    draft: ModelFolder | None = None


def open_pair(path: Path | str, draft: Path | str | None = None) -> Pair:
    """Open a pair folder, a single model folder, or target + draft folders; SpecdecError when they don't fit."""
    path = Path(path)
    target, own_draft = members(path)
    drafter = open_model(draft) if draft is not None else own_draft
    if drafter is not None:
        require_compatible(target, drafter)
    return Pair(path, target, drafter)


def members(path: Path) -> tuple[ModelFolder, ModelFolder | None]:
    """The models of a folder, neither compared nor loaded; the draft is None when there is none."""
    model = section(read_json(path / "genai_config.json"), "model")
    names = [section(model, role).get("filename") for role in ("decoder", "draft")]
    if all(names):
        return _model_of(path, str(names[0])), _model_of(path, str(names[1]))
    if (path / "target").is_dir():
        drafts = path / "draft"
        return open_model(path / "target"), open_model(drafts) if drafts.is_dir() else None
    return open_model(path), None


def _model_of(root: Path, name: str) -> ModelFolder:
    """The model whose graph genai_config.json names: described by the nearest folder with its own files."""
    graph = inside(root, name)
    if not graph.is_file():
        raise SpecdecError(
            f"no ONNX graph at {graph}",
            "genai_config.json names it, but it is missing",
            "export the pair again",
        )
    above = [folder for folder in graph.parents if folder == root or root in folder.parents]
    return open_model(next((folder for folder in above if _describes(folder)), root), graph)


def _describes(folder: Path) -> bool:
    described = (folder / "config.json").is_file() or (folder / "genai_config.json").is_file()
    return described and (folder / "tokenizer.json").is_file()
