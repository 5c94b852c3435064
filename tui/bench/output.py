"""Where a benchmark's figures go: a table for people, JSON for programs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.bench.table import tables


def report(figures: Mapping[str, Any], out: str | None) -> None:
    """Print the table; `out` is the JSON's file, or "-" for stdout (the table then goes to stderr)."""
    Console(stderr=out == "-").print(tables(figures))
    text = json.dumps(figures, indent=2, ensure_ascii=False)
    if out == "-":
        print(text)
    elif out:
        _write(Path(out), text)


def _write(path: Path, text: str) -> None:
    """Write all or nothing."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SpecdecError(f"cannot write {path}", str(error)) from error
