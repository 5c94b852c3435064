"""Where a benchmark's figures go: a table for people, JSON for programs."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from specdec_onnx.models.errors import SpecdecError


def report(
    figures: Mapping[str, Any], out: str | None, tables: Callable[[Mapping[str, Any]], RenderableType]
) -> None:
    """Print the tables; `out` is the JSON's file, or "-" for stdout (the tables then go to stderr)."""
    Console(stderr=out == "-").print(tables(figures))
    text = json.dumps(figures, indent=2, ensure_ascii=False)
    if out == "-":
        print(text)
    elif out:
        write(Path(out), text)


def write(path: Path, text: str) -> None:
    """Write all or nothing; SpecdecError where that is not possible."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SpecdecError(f"cannot write {path}", str(error)) from error
