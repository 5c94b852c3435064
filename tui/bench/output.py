"""Where a benchmark's figures go: a table for people, JSON for programs."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.streams import as_json, printable_all


def require_writable(*outs: str | Path | None) -> None:
    """SpecdecError for a file, "-" aside, that could not be written once all is measured."""
    for out in outs:
        folder = Path(out or ".").parent
        if out in (None, "-"):
            continue
        if Path(str(out)).is_dir():
            raise SpecdecError(f"cannot write {out}", "it is a folder", "name a file")
        if not folder.is_dir():
            raise SpecdecError(f"cannot write {out}", f"there is no folder {folder}", "make it first")
        if not os.access(folder, os.W_OK):
            raise SpecdecError(f"cannot write {out}", f"{folder} is closed to you", "name another file")


def report(
    figures: Mapping[str, Any], out: str | None, tables: Callable[[Mapping[str, Any]], RenderableType]
) -> None:
    """Print the tables; `out` is the JSON's file, or "-" for stdout (the tables then go to stderr)."""
    Console(stderr=out == "-", markup=False, emoji=False).print(tables(printable_all(figures)))
    text = as_json(figures, indent=2)
    if out == "-":
        print(text)
    elif out:
        write(Path(out), text)


def write(path: Path, text: str) -> None:
    """Write all or nothing, but into what is no plain file; SpecdecError where that is not possible."""
    plain = not path.is_symlink() and (path.is_file() or not path.exists())
    partial = path.with_name(f".{path.name}.partial")
    try:
        (partial if plain else path).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
        if plain:
            partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SpecdecError(f"cannot write {path}", str(error)) from error
