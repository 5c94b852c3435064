"""From a catalog name to a pair on disk: download and export what is missing, for a terminal or for the chat.

Interrupted downloads go on where they stopped; an interrupted export leaves no folder and starts again.
"""

from collections.abc import Sequence
from pathlib import Path

from specdec_onnx.models.places import folder_of
from specdec_onnx.tui.progress import Report, work_on_stderr


def prepare(name: str) -> Path:
    """The exported pair of that catalog name, made now if it is not there yet; progress goes to stderr."""
    folder = folder_of(name)
    if folder.is_dir():
        return folder
    with work_on_stderr(sizes=True) as report:
        files = _download(name, report)
    with work_on_stderr() as report:
        _export(files, folder, lambda _, done, total: report(f"exporting {name}", done, total))
    return folder


def get_pair(name: str, folder: Path, report: Report) -> None:
    """Make the pair in `folder`; a `report` that raises gives it up."""
    files = _download(name, report)
    _export(files, folder, lambda what, done, total: report(f"preparing {what}", done, total))


def _download(name: str, report: Report) -> list[Path]:
    from specdec_onnx.models.catalog import lookup
    from specdec_onnx.models.download import fetch

    return [fetch(file, report) for file in lookup(name).files]


def _export(files: Sequence[Path], folder: Path, report: Report) -> None:
    from specdec_onnx.export.pipeline import export_pair

    target, *drafts = files
    export_pair(target, drafts[0] if drafts else None, folder, progress=report)
