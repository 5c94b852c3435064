"""The catalog's entries and the local pairs as two-line texts for lists."""

from pathlib import Path

from textual.content import Content

from specdec_onnx.models.places import folder_of
from specdec_onnx.runtime.memory import available_memory
from specdec_onnx.tui.inventory import LocalPair, gigabytes
from specdec_onnx.tui.safe import on_one_line


def offered() -> dict[str, Content]:
    """Catalog entries that aren't prepared here yet, by name."""
    from specdec_onnx.models.catalog import catalog

    lines = {}
    for name, entry in catalog().items():
        if folder_of(name).exists():
            continue
        size = sum(file.bytes for file in entry.files)
        models = "with a draft model" if entry.draft else "without a draft model"
        details = f"{gigabytes(size)} to download · {models} · {entry.licence}"
        lines[name] = two_lines(entry.title, details)
    return lines


def local(pair: LocalPair, speed: float | None, current: bool) -> Content:
    """A pair on this machine: formats, size, memory, measured speed."""
    if pair.problem:
        return Content.assemble(
            (on_one_line(pair.name), "bold"),
            "\n  ",
            (on_one_line(f"can't be opened: {pair.problem}"), "$text-error"),
        )
    free = available_memory()
    tight = free is not None and pair.memory > free and not current
    memory = f"{gigabytes(pair.memory)} memory" + (f", {gigabytes(free or 0)} are available" if tight else "")
    measured = f"{speed:.0f} tok/s here" if speed else "not measured yet"
    details = f"{pair.formats} · {gigabytes(pair.size)} on disk · {memory} · {measured}"
    title = on_one_line(pair.name) + ("  (open)" if current else "")
    return two_lines(title, on_one_line(details), "$text-warning" if tight else "")


def two_lines(title: str, details: str, style: str = "") -> Content:
    """A title and a muted line below it."""
    return Content.assemble((title, "bold"), "\n  ", (details, style or "$text-muted"))


def same_path(first: str | Path, second: str | Path) -> bool:
    """Whether two names lead to the same folder."""
    return bool(str(first) and str(second)) and Path(first).resolve() == Path(second).resolve()
