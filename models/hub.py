"""A catalog file from its hub repository: the user's own hub settings hold, and an absent hub is noticed at once."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specdec_onnx.models.catalog import CatalogFile
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.places import disk_error

_CONNECT_SECONDS = 4.0
_CHUNK = 1 << 20


def extra_missing() -> SpecdecError:
    """The error for an installation without huggingface_hub."""
    return SpecdecError(
        "downloads need the export extra",
        "huggingface-hub is not installed",
        "pip install specdec-onnx[export]",
    )


def from_hub(file: CatalogFile, folder: Path, report: Callable[[int], None]) -> Path:
    """Download into `folder`, going on where an earlier try stopped; SpecdecError with one line when it fails.

    A disk that takes no more is an OSError.
    """
    try:
        import huggingface_hub as hub
    except ImportError:
        raise SpecdecError("huggingface-hub is not installed") from None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "hub.part"
    for done in _sizes(hub, file, path):
        report(done)
    return path


def _sizes(hub: Any, file: CatalogFile, path: Path) -> Iterator[int]:
    """Bytes in `path` as they come in; a generator, so that what `report` raises is not taken for a failure here."""
    try:
        if not _take_from_users_cache(hub, file, path):
            yield from _download(hub, file, path)
    except SpecdecError:
        raise
    except Exception as error:  # the library passes on whatever its HTTP client, proxy or file system raised
        if full := disk_error(error):
            raise full from None
        raise SpecdecError(_one_line(error)) from error


def _take_from_users_cache(hub: Any, file: CatalogFile, path: Path) -> bool:
    """Copy what another tool has already fetched from the hub, if it has."""
    cached = hub.try_to_load_from_cache(file.repo, file.name, revision=file.revision)
    if not isinstance(cached, str) or Path(cached).stat().st_size != file.bytes:
        return False
    shutil.copyfile(cached, path)
    return True


def _download(hub: Any, file: CatalogFile, path: Path) -> Iterator[int]:
    # Not hf_hub_download: it retries for minutes without a network, and since 2.0 it forgets a stopped download.
    url = hub.hf_hub_url(file.repo, file.name, revision=file.revision)
    size = path.stat().st_size if path.exists() else 0
    while size < file.bytes:
        before = size
        try:
            for size in _rest(hub, url, file, path):
                yield size
        except Exception as error:
            if size == before or disk_error(
                error
            ):  # otherwise the connection broke on the way: ask for the rest
                raise
        if size == before:
            raise SpecdecError(f"the hub stopped at {size:,} of {file.bytes:,} bytes")


def _rest(hub: Any, url: str, file: CatalogFile, path: Path) -> Iterator[int]:
    """Append what is missing of `url` to `path`; yields its size after each chunk."""
    with path.open("ab") as goal:
        wanted = {"Range": f"bytes={goal.tell()}-", "Accept-Encoding": "identity"}
        with _answer(hub, url, {**hub.utils.build_hf_headers(), **wanted}) as (answer, chunks):
            hub.utils.hf_raise_for_status(answer)
            _require_size(answer, file)
            if answer.status_code != 206:  # the whole file, whatever was asked for
                goal.seek(0)
                goal.truncate()
            for chunk in chunks(_CHUNK):
                goal.write(chunk)
                yield goal.tell()


def _require_size(answer: Any, file: CatalogFile) -> None:
    length = "Content-Range" if answer.status_code == 206 else "Content-Length"
    total = answer.headers.get(length, "").rpartition("/")[2]
    if total.isdigit() and int(total) != file.bytes:
        whose = f"{file.repo} now holds another {file.name}"
        raise SpecdecError(f"{whose} ({int(total):,} bytes, not {file.bytes:,})")


@contextmanager
def _answer(
    hub: Any, url: str, headers: dict[str, str]
) -> Iterator[tuple[Any, Callable[[int], Iterator[bytes]]]]:
    """A streamed GET through the hub's own session: requests before hub 1.0 (which Optimum needs), httpx since."""
    session, patience = hub.utils.get_session(), hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
    if callable(session.stream):
        timeout = (_CONNECT_SECONDS, patience, patience, _CONNECT_SECONDS)
        with session.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as answer:
            yield answer, answer.iter_bytes
    else:
        with session.get(url, headers=headers, timeout=(_CONNECT_SECONDS, patience), stream=True) as answer:
            yield answer, answer.iter_content


def _one_line(error: BaseException) -> str:
    while error.__cause__ is not None:  # the library wraps "connection refused" in a paragraph of advice
        error = error.__cause__
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
