"""The pairs on this machine: size, memory, formats, without loading anything heavy."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.content import Content

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import folder_of, pairs_folder
from specdec_onnx.models.progress import Progress, ProgressLine
from specdec_onnx.models.system import available_memory
from specdec_onnx.models.text import gigabytes, on_one_line
from specdec_onnx.tui.chat.history.store import Store


@dataclass(frozen=True, slots=True)
class LocalPair:
    """One line of the model picker; `memory` is what loading it as it is would take, `problem` why it can't be opened."""

    path: Path
    name: str
    formats: str = ""
    size: int = 0
    memory: int = 0
    problem: str = ""

    @property
    def has_draft(self) -> bool:
        """Whether a draft model speculates for the target."""
        return "+" in self.formats


def local_pairs(extra: Iterable[Path] = ()) -> list[LocalPair]:
    """Pairs in the user's folder, in ./pairs and at the extra paths, by name."""
    found: dict[Path, LocalPair] = {}
    for folder in [*extra, *_children(pairs_folder()), *_children(Path("pairs"))]:
        if folder.exists() and (real := folder.resolve()) not in found:
            found[real] = describe(folder)
    return sorted(found.values(), key=lambda pair: pair.name.lower())


def _children(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]


def describe(path: Path) -> LocalPair:
    """Read the small files of a pair; what is wrong with it is part of the answer."""
    from specdec_onnx.models.pair import members
    from specdec_onnx.runtime.machine.footprint import footprints

    try:
        target, draft = members(path)
        models = {"target": target} | ({"draft": draft} if draft else {})
        size = sum(model.weight_bytes for model in models.values())
        memory = sum(need.total for need in footprints(models).values())
        formats = " + ".join(
            str(model.facts.get("format") or _from_name(model.graph)) for model in models.values()
        )
    except SpecdecError as error:
        return LocalPair(path, path.name, problem=error.what)
    except (OSError, ValueError, KeyError) as error:
        return LocalPair(path, path.name, problem=str(error))
    return LocalPair(path, path.resolve().name, formats, size, memory)


def _from_name(graph: Path) -> str:
    kind = graph.stem.removeprefix("model").strip("_")
    return kind or "onnx"


def measured_speeds(store: Store, answers: int = 20) -> dict[str, float]:
    """Median decode speed in tokens per second of the latest answers, by pair."""
    query = """
    SELECT conversation.model, turn.statistics FROM turn JOIN conversation ON conversation.id = turn.conversation
    WHERE turn.role = 'assistant' AND turn.reason IS NOT NULL ORDER BY turn.id DESC LIMIT 1000
    """
    speeds: dict[str, list[float]] = {}
    for model, stored in store.rows(query):
        statistics = json.loads(stored)
        speed = statistics.get("decode_tokens_per_second") or 0.0
        known = speeds.setdefault(statistics.get("pair") or model, [])
        if speed and statistics.get("mode") != "plain" and len(known) < answers:
            known.append(speed)
    return {name: sorted(known)[len(known) // 2] for name, known in speeds.items() if known}


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


def prepare(name: str) -> Path:
    """The exported pair of that catalog name, made now if it is not there yet; progress goes to stderr."""
    folder = folder_of(name)
    if folder.is_dir():
        return folder
    with ProgressLine() as progress:
        files = _download(name, progress)
        _export(files, folder, lambda _, done, total: progress(f"exporting {name}", done, total))
    return folder


def get_pair(name: str, folder: Path, report: Progress) -> None:
    """Make the pair in `folder`; a `report` that raises gives it up."""
    files = _download(name, report)
    _export(files, folder, lambda what, done, total: report(f"preparing {what}", done, total))


def _download(name: str, report: Progress) -> list[Path]:
    from specdec_onnx.models.catalog import lookup
    from specdec_onnx.models.download import fetch

    return [fetch(file, report) for file in lookup(name).files]


def _export(files: Sequence[Path], folder: Path, report: Progress) -> None:
    from specdec_onnx.export.pipeline import export_pair

    target, *drafts = files
    export_pair(target, drafts[0] if drafts else None, folder, progress=report)
