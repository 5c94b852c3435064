"""A folder appears whole or not at all: it is built beside its place and moved there at the end."""

import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import replacing

_STALE_SECONDS = 3600
_MARK = "specdec.json"
_LOCK = re.compile(r"\.(?P<name>.+)\.lock-(?P<token>[0-9a-f]{8})")


@contextmanager
def staged(out: Path, *, force: bool = False) -> Iterator[Path]:
    """A fresh folder that becomes `out` when the block ends well and vanishes when it doesn't.

    SpecdecError when `out` is taken (a former export gives way only with `force`) or can't be written.
    """
    out = out.absolute()
    with suppress(OSError):
        _sweep_dead(out.parent)
        _sweep_silent(out)
    _check_free(out, force)
    with _claimed(out) as folder:
        yield from _filled(folder, out)


@contextmanager
def _claimed(out: Path) -> Iterator[Path]:
    """A fresh folder beside `out`, and as long as this process lives a lock that says so; both go at the end."""
    token = secrets.token_hex(4)
    folder, file = (out.with_name(f".{out.name}.{kind}-{token}") for kind in ("partial", "lock"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(file)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise SpecdecError(
            f"cannot write to {out.parent}", str(error), "choose another folder with -o"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            lock.release()
        file.unlink(missing_ok=True)


def _filled(folder: Path, out: Path) -> Iterator[Path]:
    """Hand `folder` over to be filled, then move it to `out`."""
    try:
        yield folder
        _flush(folder)
        folder.chmod(0o755)
        _replace(folder, out)
    except OSError as error:
        raise SpecdecError(
            f"could not write {out}", str(error), "check the free space and the permissions"
        ) from error


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Put readable JSON in the file's place in one step; the same content gives the same bytes everywhere."""
    write_text(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(file: Path, text: str) -> None:
    """Put `text` in the file's place in one step."""
    with replacing(file) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="\n")


def _check_free(out: Path, force: bool) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir() or out.is_symlink():
        raise SpecdecError(f"{out} is in the way", "it is not a folder", "choose another place with -o")
    if not any(out.iterdir()):
        return
    if not (out / _MARK).is_file():
        raise SpecdecError(
            f"{out} is not empty", "it holds something that no export wrote", "choose another place with -o"
        )
    if not force:
        raise SpecdecError(f"{out} exists already", "it holds a finished export", "add --force to replace it")


def _replace(folder: Path, out: Path) -> None:
    """Move `folder` to `out`; a former export steps aside first and is deleted last."""
    former = folder.with_name(folder.name.replace(".partial-", ".former-"))
    with suppress(FileNotFoundError):
        out.rename(former)
    try:
        folder.rename(out)
    except OSError:
        if former.exists():
            former.rename(out)
        raise
    _sync(out.parent)
    shutil.rmtree(former, ignore_errors=True)


def _lock(file: Path) -> Any:
    """The lock on `file`, held by this process; None where the file system or this installation has no locks."""
    from filelock import FileLock  # comes with huggingface-hub

    lock = FileLock(file, timeout=0)
    try:
        lock.acquire()
    except NotImplementedError:
        return None
    return lock


def _sweep_dead(parent: Path) -> None:
    """Remove what exports in `parent` left whose process is gone: the system gave up their locks.

    A former export that was about to be replaced is put back.
    """
    for file in parent.glob(".*.lock-*"):
        found = _LOCK.fullmatch(file.name)
        if not found:
            continue
        with suppress(OSError):  # held: Timeout is one of them
            lock = _lock(file)
            if lock is None:
                continue
            name, token = found["name"], found["token"]
            former = parent / f".{name}.former-{token}"
            if former.is_dir() and not (parent / name).exists():
                former.rename(parent / name)
            for kind in ("partial", "former"):
                shutil.rmtree(parent / f".{name}.{kind}-{token}", ignore_errors=True)
            lock.release()
            file.unlink(missing_ok=True)


def _sweep_silent(out: Path) -> None:
    """Remove what a killed export left without a lock: a running one writes all the time, after a silent hour it is dead."""
    for kind in ("partial", "former"):
        for folder in out.parent.glob(f".{out.name}.{kind}-*"):
            if (folder.with_name(folder.name.replace(f".{kind}-", ".lock-"))).exists():
                continue
            newest = max((path.stat().st_mtime for path in (folder, *folder.rglob("*"))), default=0.0)
            if time.time() - newest > _STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        else:
            _sync(path)


def _sync(folder: Path) -> None:
    """Make a folder's entries durable, where the system can."""
    if sys.platform != "win32":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
