"""A folder appears whole or not at all: it is filled under another name and renamed at the end."""

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
from specdec_onnx.models.system import replacing, require_utf8

_STALE_SECONDS = 3600
_MARK = "specdec.json"
_LOCK = re.compile(r"\.(?P<name>.+)\.lock-(?P<token>[0-9a-f]{8})")


@contextmanager
def staged(out: Path, *, force: bool = False) -> Iterator[Path]:
    """A new folder that becomes `out` if the block succeeds, and is removed if it fails.

    SpecdecError if `out` exists (an earlier export is replaced only with `force`, also one that was finished in the
    meantime) or can't be written.
    """
    out = require_free(out, force=force)
    with _claimed(out) as folder:
        yield from _filled(folder, out, force)


def require_free(out: Path, *, force: bool = False) -> Path:
    """The absolute path of `out`, where a folder can be put. Raises SpecdecError as `staged` does, before any work."""
    try:
        out = out.absolute()
    except FileNotFoundError as error:
        raise SpecdecError(
            f"cannot write to {out}", "the working folder was deleted", "cd to another folder"
        ) from error
    require_utf8(out)
    with suppress(OSError):
        _sweep_dead(out.parent)
        _sweep_silent(out)
    _check_free(out, force)
    _check_movable(out)
    return out


@contextmanager
def _claimed(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, and a lock that shows that this process lives; both are removed at the end."""
    token = secrets.token_hex(4)
    folder, file = (out.with_name(f".{out.name}.{kind}-{token}") for kind in ("partial", "lock"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)  # before the lock, whose error tells no reason
        lock = _lock(file)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
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


def _filled(folder: Path, out: Path, force: bool) -> Iterator[Path]:
    """Let the caller fill `folder`, then move it to `out`."""
    try:
        yield folder
        _flush(folder)
        folder.chmod(0o755)
        _check_free(out, force)
        _replace(folder, out, force)
    except OSError as error:
        raise SpecdecError(
            f"could not write {out}", str(error), "check the free space and the permissions"
        ) from error


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write readable JSON in one step; the same content gives the same bytes on every system."""
    write_text(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(file: Path, text: str) -> None:
    """Put `text` in the file's place in one step."""
    with replacing(file) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="\n")


def _check_free(out: Path, force: bool) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir() or out.is_symlink():
        raise SpecdecError(f"{out} is in the way", "it is not a folder", "choose another folder with -o")
    if not any(out.iterdir()):
        return
    if not (out / _MARK).is_file():
        raise SpecdecError(
            f"{out} is not empty", "it has files that no export wrote", "choose another folder with -o"
        )
    if not force:
        raise SpecdecError(f"{out} exists already", "it is a finished export", "add --force to replace it")


def _check_movable(out: Path) -> None:
    """SpecdecError if a folder at `out` could not be replaced: a process stands in it, or a disk is mounted there."""
    if not out.exists():
        return
    fix = f"name a new folder in it, such as {out / 'model'}, or run from another folder"
    with suppress(FileNotFoundError):  # the working folder was deleted
        if Path.cwd().is_relative_to(out.resolve()):
            raise SpecdecError(f"{out} cannot be replaced", "it is or holds the working folder", fix)
    if out.is_mount():
        raise SpecdecError(f"{out} cannot be replaced", "a disk is mounted there", fix)


def _replace(folder: Path, out: Path, force: bool) -> None:
    """Move `folder` to `out`; an earlier export is renamed first and deleted last."""
    former = folder.with_name(folder.name.replace(".partial-", ".former-"))
    with suppress(FileNotFoundError):
        if force:
            out.rename(former)
        else:
            out.rmdir()  # fails unless it is empty
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
    """Remove what dead exports left in `parent`: the system has released their locks.

    An earlier export that was about to be replaced is put back.
    """
    for file in parent.glob(".*.lock-*"):
        match = _LOCK.fullmatch(file.name)
        if not match:
            continue
        with suppress(OSError):  # Timeout, if the lock is held, is an OSError
            lock = _lock(file)
            if lock is None:
                continue
            name, token = match["name"], match["token"]
            former = parent / f".{name}.former-{token}"
            if former.is_dir() and not (parent / name).exists():
                former.rename(parent / name)
            for kind in ("partial", "former"):
                shutil.rmtree(parent / f".{name}.{kind}-{token}", ignore_errors=True)
            lock.release()
            file.unlink(missing_ok=True)


def _sweep_silent(out: Path) -> None:
    """Remove what a killed export left without a lock: one that has written nothing for an hour is dead."""
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
