"""A folder appears whole or not at all: it is built beside its place and moved there at the end."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from specdec_onnx.models.errors import SpecdecError

_STALE_SECONDS = 3600
_MARK = "specdec.json"


@contextmanager
def staged(out: Path, *, force: bool = False) -> Iterator[Path]:
    """A fresh folder that becomes `out` when the block ends well and vanishes when it doesn't.

    SpecdecError when `out` is taken (a former export gives way only with `force`) or can't be written.
    """
    out = out.absolute()
    _check_free(out, force)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _sweep(out)
        folder = Path(mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    except OSError as error:
        raise SpecdecError(
            f"cannot write to {out.parent}", str(error), "choose another folder with -o"
        ) from error
    try:
        yield folder
        _flush(folder)
        folder.chmod(0o755)
        _replace(folder, out)
    except OSError as error:
        raise SpecdecError(
            f"could not write {out}", str(error), "check the free space and the permissions"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Put readable JSON in the file's place in one step; the same content gives the same bytes everywhere."""
    write_text(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(file: Path, text: str) -> None:
    """Put `text` in the file's place in one step."""
    fresh = file.with_name(f".{file.name}.partial")
    fresh.write_text(text, encoding="utf-8", newline="\n")
    fresh.replace(file)


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


def _sweep(out: Path) -> None:
    """Remove what a killed export left: a running one writes all the time, so after a silent hour it is dead."""
    for kind in ("partial", "former"):
        for folder in out.parent.glob(f".{out.name}.{kind}-*"):
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
