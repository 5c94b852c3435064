"""What SOURCE means on the command line: a path, a name from the catalog, or a model on the Hugging Face hub."""

from collections.abc import Callable
from pathlib import Path

from specdec_onnx.export.checkpoint.hub import fetch_repository
from specdec_onnx.export.checkpoint.hub_listing import HubId
from specdec_onnx.models.catalog import Entry, catalog
from specdec_onnx.models.download import fetch
from specdec_onnx.models.errors import SpecdecError

Progress = Callable[[str, int, int], None]


def resolve(target: str, draft: str | None, progress: Progress) -> tuple[Path, Path | None]:
    """Paths of target and draft, fetched if not on this machine; a catalog entry brings its own draft unless given."""
    entry = _named(target)
    found = fetch(entry.target, progress) if entry else _found(target, progress)
    if draft is None:
        return found, fetch(entry.draft, progress) if entry and entry.draft else None
    if draft == "none":
        return found, None
    drafter = _named(draft)
    return found, fetch(drafter.target, progress) if drafter else _found(draft, progress)


def _named(source: str) -> Entry | None:
    return None if Path(source).expanduser().exists() else catalog().get(source)


def _found(source: str, progress: Progress) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        return path
    if id := HubId.parse(source):
        return fetch_repository(id, progress)
    raise SpecdecError(
        f"there is no {source}",
        f"it is neither a file or folder nor in the catalog ({', '.join(catalog())})",
        "give a .gguf file, a folder with safetensors, one of these names, or a hub id such as Qwen/Qwen3-0.6B",
    )
