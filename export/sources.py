"""What SOURCE means on the command line: a path, a name from the catalog, or a model on the Hugging Face hub."""

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from specdec_onnx.export.checkpoint import open_checkpoint
from specdec_onnx.export.checkpoint.hub import HubId, fetch_repository
from specdec_onnx.export.checkpoint.weights import HEAD, expected_shapes
from specdec_onnx.export.graph.architecture import FAMILIES, read_architecture
from specdec_onnx.export.graph.model_writer import describe
from specdec_onnx.export.prebuilt import ReadyModel, find_ready
from specdec_onnx.models.catalog import Entry, Proposal, catalog, propose
from specdec_onnx.models.download import fetch
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.progress import Progress


def resolve(
    target: str, draft: str | None, progress: Progress, say: Callable[[str], None] = print
) -> tuple[Path, Path | None]:
    """Paths of target and draft, fetched if not on this machine; a catalog entry brings its own draft unless given.

    For "auto" the catalog's best draft is taken, and `say` told why; SpecdecError if none fits.
    """
    entry = _named(target)
    found = fetch(entry.target, progress) if entry else _found(target, progress)
    if draft is None:
        return found, fetch(entry.draft, progress) if entry and entry.draft else None
    if draft == "none":
        return found, None
    if draft == "auto":
        proposal = propose_for(found)
        say(str(proposal))
        return found, fetch(proposal.file, progress)
    drafter = _named(draft)
    return found, fetch(drafter.target, progress) if drafter else _found(draft, progress)


def propose_for(target: Path) -> Proposal:
    """The catalog's draft for the model at `target`, by its tokenizer and size; SpecdecError if none fits."""
    ready = find_ready(target)
    if ready is not None:
        return propose(ready.source.name, ready.model.tokenizer.spellings, _count(_implied_shapes(ready)))
    checkpoint = open_checkpoint(target)
    with TemporaryDirectory() as folder:
        spellings = describe(checkpoint, Path(folder)).tokenizer.spellings
    shapes = [checkpoint.shape(name) for name in checkpoint.names() if name != HEAD]
    return propose(checkpoint.source.name, spellings, _count(shapes))


def _implied_shapes(ready: ReadyModel) -> Iterable[tuple[int, ...]]:
    """Shapes of all tensors but the head that a ready graph was made from."""
    unknown = (
        f"its family, {ready.model.model_type}, is not known"
        if ready.model.model_type not in FAMILIES
        else ""
    )
    if "intermediate_size" not in ready.model.config:
        unknown = "it has no config.json with the sizes of its layers"
    if unknown:
        raise SpecdecError(
            f"cannot tell how large {ready.source.name} is",
            f"its graph holds no plain weights, and {unknown}",
            "name a draft yourself (--draft SOURCE), or export with --draft none",
        )
    return expected_shapes(read_architecture(ready.model.config)).values()


def _count(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes)


def _named(source: str) -> Entry | None:
    return None if Path(source).expanduser().exists() else catalog().get(source)


def _found(source: str, progress: Progress) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        find_ready(path)  # refuses one that lacks something before anything is downloaded
        return path
    if id := HubId.parse(source):
        return fetch_repository(id, progress)
    raise SpecdecError(
        f"there is no {source}",
        f"it is neither a file or folder nor in the catalog ({', '.join(catalog())})",
        "give a .gguf file, a folder with safetensors, one of these names, or a hub id such as Qwen/Qwen3-0.6B",
    )
