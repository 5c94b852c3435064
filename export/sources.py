"""What SOURCE means on the command line: a path, a catalog name, or a model on the Hugging Face hub."""

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from specdec_onnx.export.checkpoint import open_checkpoint
from specdec_onnx.export.checkpoint.hub import HubId, fetch_repository
from specdec_onnx.export.checkpoint.weights import HEAD, expected_shapes
from specdec_onnx.export.graph.architecture import FAMILIES, read_architecture
from specdec_onnx.export.graph.model_writer import describe
from specdec_onnx.export.prebuilt import PrebuiltModel, find_prebuilt
from specdec_onnx.models.catalog import Entry, Proposal, catalog, propose
from specdec_onnx.models.download import fetch
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.progress import Progress
from specdec_onnx.models.system import user_path


def resolve(
    target: str, draft: str | None, progress: Progress, say: Callable[[str], None] = print
) -> tuple[Path, Path | None]:
    """Paths of target and draft, fetched if they are not on this machine.

    Args:
        target: The SOURCE of the target.
        draft: The SOURCE of the draft; None for the catalog's own draft of a catalog name, "none" for no draft,
            "auto" for the catalog's best draft by vocabulary and size.
        progress: Called during downloads.
        say: Told which draft "auto" takes, and why.

    Raises:
        SpecdecError: There is no such source, or no draft fits.
    """
    entry = _catalog_entry(target)
    target_path = _locate(target, progress)
    if draft is None:
        return target_path, fetch(entry.draft, progress) if entry and entry.draft else None
    if draft == "none":
        return target_path, None
    if draft == "auto":
        proposal = propose_for(target_path)
        say(str(proposal))
        return target_path, fetch(proposal.file, progress)
    return target_path, _locate(draft, progress)


def propose_for(target: Path) -> Proposal:
    """The catalog's draft for the model at `target`, by its tokenizer and size; SpecdecError if none fits."""
    prebuilt = find_prebuilt(target)
    if prebuilt is not None:
        shapes = _implied_shapes(prebuilt)
        return propose(prebuilt.source.name, prebuilt.model.tokenizer.spellings, _count(shapes))
    checkpoint = open_checkpoint(target)
    with TemporaryDirectory() as folder:
        spellings = describe(checkpoint, Path(folder)).tokenizer.spellings
    sizes = (checkpoint.shape(name) for name in checkpoint.names() if name != HEAD)
    return propose(checkpoint.source.name, spellings, _count(sizes))


def _implied_shapes(prebuilt: PrebuiltModel) -> Iterable[tuple[int, ...]]:
    """Shapes of all tensors but the head in the checkpoint that a graph was built from."""
    model = prebuilt.model
    why = f"its family, {model.model_type}, is not known" if model.model_type not in FAMILIES else ""
    if "intermediate_size" not in model.config:
        why = "it has no config.json with the sizes of its layers"
    if why:
        raise SpecdecError(
            f"cannot tell how large {prebuilt.source.name} is",
            f"its graph has no plain weights, and {why}",
            "name a draft yourself (--draft SOURCE), or export with --draft none",
        )
    return expected_shapes(read_architecture(model.config)).values()


def _count(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes)


def _catalog_entry(source: str) -> Entry | None:
    return None if user_path(source).exists() else catalog().get(source)


def _locate(source: str, progress: Progress) -> Path:
    path = user_path(source)
    if path.exists():
        find_prebuilt(path)  # refuses one that lacks something before anything is downloaded
        return path
    if entry := _catalog_entry(source):
        return fetch(entry.target, progress)
    if id := HubId.parse(source):
        return fetch_repository(id, progress)
    raise SpecdecError(
        f"there is no {source}",
        f"it is neither a file or folder nor in the catalog ({', '.join(catalog())})",
        "give a .gguf file, a folder with safetensors, one of these names, or a hub id such as Qwen/Qwen3-0.6B",
    )
