"""GGUF files in several parts: NAME-00001-of-00003.gguf and so on, with the metadata in the first."""

import re
from pathlib import Path

from specdec_onnx.export.checkpoint.gguf_file import GgufFile, StoredTensor, read_gguf
from specdec_onnx.models.errors import SpecdecError

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def parts_of(path: Path) -> tuple[Path, ...]:
    """All parts of the file that `path` is a part of, in order; itself alone if its name is no part's."""
    match = _PART.fullmatch(path.name)
    if not match:
        return (path,)
    stem, count = match[1], int(match[3])
    return tuple(path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1))


def read_whole(path: Path) -> GgufFile:
    """Read a file with all of its parts; SpecdecError when one is missing or belongs to another model."""
    parts = parts_of(path)
    missing = [part.name for part in parts if not part.is_file()]
    if missing and len(parts) > 1:
        raise SpecdecError(
            f"{path.name} is one of {len(parts)} parts", f"{missing[0]} is missing", "download it too"
        )
    files = [read_gguf(part) for part in parts]
    _require_count(files)
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        if repeated := tensors.keys() & file.tensors.keys():
            raise _mixed(file.path, f"{min(repeated)} is in an earlier part too")
        tensors |= file.tensors
    return GgufFile(parts[0], files[0].metadata, tensors)


def _require_count(files: list[GgufFile]) -> None:
    for number, file in enumerate(files):
        said = file.metadata.get("split.count", 1), file.metadata.get("split.no", 0)
        if said != (len(files), number):
            raise _mixed(file.path, f"it says that it is part {said[1]!r} (from 0) of {said[0]!r}")


def _mixed(path: Path, why: str) -> SpecdecError:
    return SpecdecError(
        f"{path.name} does not fit the other parts", why, "keep the parts' names as they came"
    )
