"""A model on the Hugging Face hub: what its repository lists is fetched into the cache, file by file, once."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from specdec_onnx.export.checkpoint.hub_listing import HubId, Unreachable, gated, library, listing, wanted
from specdec_onnx.models.catalog import CatalogFile
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.hub import from_hub
from specdec_onnx.models.layout import inside
from specdec_onnx.models.places import cache_folder, cannot_keep
from specdec_onnx.models.progress import Progress

_DONE = ".complete"


def fetch_repository(id: HubId, progress: Progress) -> Path:
    """A folder with the model's files, or the .gguf file that `id` names; SpecdecError in plain words."""
    home = cache_folder() / "hub" / id.repo.replace("/", "--")
    try:
        found = listing(id)
    except Unreachable as error:
        return _kept(id, home, error)
    folder = home / found.sha / PurePosixPath(id.repo).name
    with _alone(home):
        _download(id, found.sha, wanted(id, found.siblings), folder, progress)
    with suppress(OSError):  # only remembered for a day without a connection
        _reference(home, id).parent.mkdir(parents=True, exist_ok=True)
        _reference(home, id).write_text(found.sha, encoding="utf-8")
    return folder / id.file if id.file else folder


def _download(id: HubId, sha: str, files: Sequence[Any], folder: Path, progress: Progress) -> None:
    """Fetch what is missing; each file is put in place whole, the mark that all are there last."""
    for file in files:
        goal = inside(folder, file.rfilename)
        if goal.is_file() and goal.stat().st_size == file.size:
            continue
        digest = file.lfs.sha256 if file.lfs else ""
        item = CatalogFile(file.rfilename, id.repo, digest, file.size, revision=sha)
        fetched = _fetched(id, item, goal.with_name(f".{goal.name}.partial"), progress)
        fetched.replace(goal)
        fetched.parent.rmdir()
    if not id.file:
        (folder / _DONE).touch()


def _fetched(id: HubId, file: CatalogFile, partial: Path, progress: Progress) -> Path:
    try:
        path = from_hub(file, partial, lambda done: progress(f"downloading {file.name}", done, file.bytes))
    except SpecdecError as error:
        if isinstance(error.__cause__, library().errors.GatedRepoError):
            raise gated(id) from None
        fix = "run this again (what was fetched is kept)"
        raise SpecdecError(f"could not download {file.name} of {id}", error.what, fix) from None
    if file.sha256 and _sha256(path) != file.sha256:
        path.unlink()
        raise SpecdecError(f"{file.name} of {id} arrived damaged", "its sha256 is another", "run this again")
    return path


def _kept(id: HubId, home: Path, error: Unreachable) -> Path:
    """What was fetched before, by us or by another tool of this user's."""
    with suppress(OSError):
        sha = _reference(home, id).read_text(encoding="utf-8")
        folder = home / sha / PurePosixPath(id.repo).name
        if id.file and (folder / id.file).is_file():
            return folder / id.file
        if not id.file and (folder / _DONE).is_file():
            return folder
    name = id.file or "config.json"
    found = library().try_to_load_from_cache(id.repo, name, revision=id.revision)
    if isinstance(found, str):
        return Path(found) if id.file else Path(found).parent
    raise error


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One process at a time: a second waits, then finds the files in place."""
    from filelock import FileLock  # comes with huggingface-hub

    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / ".lock"):
            yield
    except OSError as error:
        raise cannot_keep("the model", home, error) from error


def _reference(home: Path, id: HubId) -> Path:
    return home / "refs" / id.revision.replace("/", "--")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
