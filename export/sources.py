"""What SOURCE means on the command line: a path, or a name from the catalog."""

from collections.abc import Callable
from pathlib import Path

from specdec_onnx.models.catalog import Entry, catalog
from specdec_onnx.models.download import fetch
from specdec_onnx.models.errors import SpecdecError

Progress = Callable[[str, int, int], None]


def resolve(target: str, draft: str | None, progress: Progress) -> tuple[Path, Path | None]:
    """Paths of target and draft, fetched if in the catalog; an entry brings its own draft unless one is given."""
    entry = _named(target)
    found = fetch(entry.target, progress) if entry else _existing(target)
    if draft is None:
        return found, fetch(entry.draft, progress) if entry and entry.draft else None
    if draft == "none":
        return found, None
    drafter = _named(draft)
    return found, fetch(drafter.target, progress) if drafter else _existing(draft)


def _named(source: str) -> Entry | None:
    return None if Path(source).expanduser().exists() else catalog().get(source)


def _existing(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.exists():
        raise SpecdecError(
            f"there is no {source}",
            f"it is neither a file or folder nor in the catalog ({', '.join(catalog())})",
            "give a .gguf file, a folder with safetensors, or one of these names",
        )
    return path
