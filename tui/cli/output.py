"""Where figures go: tables to the terminal, JSON to a file or to stdout."""

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import replacing
from specdec_onnx.tui.cli.streams import as_json, printable_all


class TableConsole(Console):
    """A console for tables, in which brackets and colons mean nothing.

    It leaves a closed pipe to the command, which ends the same way whatever it prints with.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raise the error again, where rich would exit with code 1."""
        raise BrokenPipeError


def require_writable(*outs: str | Path | None) -> None:
    """Raise SpecdecError before a long measurement whose figures could not be written; "-" is stdout."""
    for out in outs:
        if out is None or out == "-":
            continue
        path = Path(out)
        if path.is_dir():
            raise SpecdecError(f"cannot write {out}", "it is a folder", "name a file")
        if not path.parent.is_dir():
            raise SpecdecError(f"cannot write {out}", f"there is no folder {path.parent}", "create it first")
        if not os.access(path.parent, os.W_OK):
            raise SpecdecError(f"cannot write {out}", f"{path.parent} is not writable", "name another file")


def report(
    figures: Mapping[str, Any], out: str | None, tables: Callable[[Mapping[str, Any]], RenderableType]
) -> None:
    """Print the tables and write the JSON to the file `out`; "-" is stdout, and sends the tables to stderr."""
    TableConsole(stderr=out == "-").print(tables(printable_all(figures)))
    text = as_json(figures, indent=2)
    if out == "-":
        print(text)
    elif out:
        write(Path(out), text)


def write(path: Path, text: str) -> None:
    """Write all or nothing; a link or a pipe is written to, not replaced. Raises SpecdecError."""
    plain = not path.is_symlink() and (path.is_file() or not path.exists())
    try:
        with replacing(path) if plain else nullcontext(path) as file:
            file.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise SpecdecError(f"cannot write {path}", str(error)) from error
