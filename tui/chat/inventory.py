"""The model pairs to choose from, on this machine and in the catalog, and how a list shows them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from textual.content import Content

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import folder_of, pairs_folder
from specdec_onnx.models.system import available_memory
from specdec_onnx.models.text import gigabytes, on_one_line


@dataclass(frozen=True, slots=True)
class LocalPair:
    """A pair on this machine.

    `size` and `memory` are bytes, on disk and when loaded; `problem` says why the pair can't be opened.
    """

    path: Path
    name: str
    formats: str = ""
    size: int = 0
    memory: int = 0
    problem: str = ""


def local_pairs(extra: Iterable[Path] = ()) -> list[LocalPair]:
    """List the pairs in the user's folder, in ./pairs and at the extra paths, by name."""
    folders = [*extra, *_subfolders(pairs_folder()), *_subfolders(Path("pairs"))]
    by_path = {folder.resolve(): folder for folder in reversed(folders) if folder.exists()}
    return sorted(map(describe, by_path.values()), key=lambda pair: pair.name.lower())


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]


def describe(path: Path) -> LocalPair:
    """Describe a pair by its small files, without loading it."""
    from specdec_onnx.models.pair import members
    from specdec_onnx.runtime.machine.footprint import footprints

    try:
        target, draft = members(path)
        models = {"target": target} | ({"draft": draft} if draft else {})
        size = sum(model.weight_bytes for model in models.values())
        memory = sum(need.total for need in footprints(models).values())
        formats = [
            str(model.facts.get("format") or _format_in_name(model.graph)) for model in models.values()
        ]
    except SpecdecError as error:
        return LocalPair(path, path.name, problem=error.what)
    except (OSError, ValueError, KeyError) as error:
        return LocalPair(path, path.name, problem=str(error))
    return LocalPair(path, path.resolve().name, " + ".join(formats), size, memory)


def _format_in_name(graph: Path) -> str:
    return graph.stem.removeprefix("model").strip("_") or "onnx"


def same_folder(first: str | Path, second: str | Path) -> bool:
    """Return whether two paths lead to the same folder."""
    return bool(str(first) and str(second)) and Path(first).resolve() == Path(second).resolve()


def local_option(pair: LocalPair, speed: float | None, *, is_open: bool) -> Content:
    """Describe a pair on this machine: formats, size, memory, measured speed in tokens per second."""
    if pair.problem:
        problem = on_one_line(f"can't be opened: {pair.problem}")
        return _option(on_one_line(pair.name), problem, "$text-error")
    available = available_memory()
    tight = available is not None and pair.memory > available and not is_open
    memory = f"{gigabytes(pair.memory)} memory"
    memory += f", {gigabytes(available or 0)} available" if tight else ""
    measured = f"{speed:.0f} tok/s here" if speed else "not measured yet"
    details = on_one_line(f"{pair.formats} · {gigabytes(pair.size)} on disk · {memory} · {measured}")
    title = on_one_line(pair.name) + ("  (open)" if is_open else "")
    return _option(title, details, "$text-warning" if tight else "$text-muted")


def downloadable_options() -> dict[str, Content]:
    """Describe the pairs of the catalog that are not on this machine, by name."""
    from specdec_onnx.models.catalog import catalog

    options = {}
    for name, entry in catalog().items():
        if not folder_of(name).exists():
            size = gigabytes(sum(file.bytes for file in entry.files))
            models = "with a draft model" if entry.draft else "without a draft model"
            details = f"{size} to download · {models} · {entry.licence}"
            options[name] = _option(entry.title, details, "$text-muted")
    return options


def _option(title: str, details: str, style: str) -> Content:
    return Content.assemble((title, "bold"), "\n  ", (details, style))
