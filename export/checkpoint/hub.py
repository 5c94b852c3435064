"""A model on the Hugging Face hub: the files of its repository are fetched into the cache, each once."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from specdec_onnx.export.checkpoint import sha256_of
from specdec_onnx.models.catalog import CatalogFile
from specdec_onnx.models.download import extra_missing, from_hub, one_at_a_time
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import inside
from specdec_onnx.models.progress import Progress
from specdec_onnx.models.system import cache_folder

_BESIDE = ("*.json", "*.jinja")
_WEIGHTS = (
    ("model*.safetensors",),
    ("onnx/model.onnx", "onnx/model.onnx_data*"),
    ("model.onnx", "model.onnx_data*", "model.onnx.data*"),
)
_TIMEOUT_SECONDS = 10.0
_COMPLETE = ".complete"


class Unreachable(SpecdecError):
    """There is no connection to the hub, or it is switched off."""


@dataclass(frozen=True)
class HubId:
    """`org/name[/FILE.gguf][@revision]`."""

    repo: str
    file: str | None = None
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> "HubId | None":
        """The id in `text`, or None if it is not one."""
        part = r"[A-Za-z0-9][\w.-]*"
        match = re.fullmatch(
            rf"({part}/{part})(?:/((?:{part}/)*{part}\.gguf))?(?:@({part}(?:/{part})*))?", text
        )
        if match is None or ".." in text:
            return None
        return cls(match[1], match[2], match[3] or "main")

    def __str__(self) -> str:
        return self.repo if self.revision == "main" else f"{self.repo}@{self.revision}"


def listing(id: HubId) -> Any:
    """The repository at that revision, with the sizes of its files; SpecdecError, Unreachable if offline."""
    hub = library()
    missing = hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError
    try:
        return hub.HfApi().model_info(
            id.repo, revision=id.revision, files_metadata=True, timeout=_TIMEOUT_SECONDS
        )
    except hub.errors.GatedRepoError:
        raise gated(id) from None
    except missing as error:
        what = "revision" if isinstance(error, hub.errors.RevisionNotFoundError) else "model"
        why = f"it is not a file or folder here, and the hub has no such {what} (private ones need a login)"
        raise SpecdecError(
            f"there is no {id}", why, "check its name, or log in with `hf auth login`"
        ) from None
    except Exception as error:  # the library passes on whatever its HTTP client or proxy raised
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        fix = "connect, or give a folder or file on this machine"
        raise Unreachable(f"cannot reach the hub for {id}", why, fix) from error


def wanted(id: HubId, siblings: Sequence[Any]) -> list[Any]:
    """The files to fetch: one GGUF, or configuration and weights in the best available form."""
    if id.file:
        return [_named(id, siblings)]
    for patterns in _WEIGHTS:
        weights = [file for file in siblings if _matches(file, patterns)]
        if weights:
            beside = [file for file in siblings if _matches(file, _BESIDE)]
            return [*beside, *weights]
    ggufs = [file.rfilename for file in siblings if file.rfilename.endswith(".gguf")]
    if ggufs:
        why = f"it has {len(ggufs)} GGUF files: {', '.join(ggufs[:4])}{', ...' if len(ggufs) > 4 else ''}"
        raise SpecdecError(f"{id} is ambiguous", why, f"choose one, such as {id.repo}/{ggufs[0]}")
    raise SpecdecError(
        f"{id} has no supported weights",
        "it has no safetensors, ONNX or GGUF file",
        "choose a model that has one of them",
    )


def _matches(file: Any, patterns: Sequence[str]) -> bool:
    name = file.rfilename
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)


def _named(id: HubId, siblings: Sequence[Any]) -> Any:
    matches = [file for file in siblings if file.rfilename == id.file]
    if not matches:
        others = ", ".join(file.rfilename for file in siblings if file.rfilename.endswith(".gguf"))
        raise SpecdecError(f"{id} has no {id.file}", f"its GGUF files: {others or 'none'}")
    return matches[0]


def gated(id: HubId) -> SpecdecError:
    """The error for a model whose terms must be accepted."""
    return SpecdecError(
        f"{id} is gated",
        "its terms must be accepted first",
        f"accept them on the model's page ({id.repo}), then log in with `hf auth login`",
    )


def library() -> Any:
    """huggingface_hub; SpecdecError without the extra."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise extra_missing() from None
    return huggingface_hub


def fetch_repository(id: HubId, progress: Progress) -> Path:
    """Fetch a model that is not here yet; returns its folder, or the .gguf file that `id` names."""
    home = cache_folder() / "hub" / id.repo.replace("/", "--")
    try:
        repository = listing(id)
    except Unreachable as error:
        return _fetched_before(id, home, error)
    folder = home / repository.sha / PurePosixPath(id.repo).name
    with one_at_a_time(home / ".lock", "the model"):
        _download(id, repository.sha, wanted(id, repository.siblings), folder, progress)
    with suppress(OSError):  # only for use without a connection
        _reference(home, id).parent.mkdir(parents=True, exist_ok=True)
        _reference(home, id).write_text(repository.sha, encoding="utf-8")
    return folder / id.file if id.file else folder


def _download(id: HubId, sha: str, files: Sequence[Any], folder: Path, progress: Progress) -> None:
    """Fetch what is missing; each file appears complete, and last a mark that all are there."""
    for file in files:
        path = inside(folder, file.rfilename)
        if path.is_file() and path.stat().st_size == file.size:
            continue
        digest = file.lfs.sha256 if file.lfs else ""
        item = CatalogFile(file.rfilename, id.repo, digest, file.size, revision=sha)
        fetched = _fetched(id, item, path.with_name(f".{path.name}.partial"), progress)
        fetched.replace(path)
        fetched.parent.rmdir()
    if not id.file:
        (folder / _COMPLETE).touch()


def _fetched(id: HubId, file: CatalogFile, partial: Path, progress: Progress) -> Path:
    try:
        path = from_hub(file, partial, lambda done: progress(f"downloading {file.name}", done, file.bytes))
    except SpecdecError as error:
        if isinstance(error.__cause__, library().errors.GatedRepoError):
            raise gated(id) from None
        fix = "run this again to resume"
        raise SpecdecError(f"could not download {file.name} of {id}", error.what, fix) from None
    if file.sha256 and sha256_of(path) != file.sha256:
        path.unlink()
        raise SpecdecError(f"{file.name} of {id} arrived damaged", "its sha256 differs", "run this again")
    return path


def _fetched_before(id: HubId, home: Path, error: Unreachable) -> Path:
    """What we or another of the user's tools fetched before."""
    with suppress(OSError):
        sha = _reference(home, id).read_text(encoding="utf-8")
        folder = home / sha / PurePosixPath(id.repo).name
        if id.file and (folder / id.file).is_file():
            return folder / id.file
        if not id.file and (folder / _COMPLETE).is_file():
            return folder
    name = id.file or "config.json"
    cached = library().try_to_load_from_cache(id.repo, name, revision=id.revision)
    if isinstance(cached, str):
        return Path(cached) if id.file else Path(cached).parent
    raise error


def _reference(home: Path, id: HubId) -> Path:
    return home / "refs" / id.revision.replace("/", "--")
