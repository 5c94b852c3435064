"""Download and export a pair of the catalog."""

from pathlib import Path

from specdec_onnx.models.places import folder_of
from specdec_onnx.tui.progress import Report, work_on_stderr


def prepared_pair(name: str) -> Path:
    """Return the folder of the pair `name`, prepared now if it is missing, with progress on stderr."""
    folder = folder_of(name)
    if not folder.is_dir():
        with work_on_stderr(sizes=True) as report:
            files = _download(name, report)
        with work_on_stderr() as report:
            _export(files, folder, lambda _, done, total: report(f"exporting {name}", done, total))
    return folder


def prepare_pair(name: str, folder: Path, report: Report) -> None:
    """Prepare the pair `name` in `folder`; an exception raised by `report` cancels it."""
    files = _download(name, report)
    _export(files, folder, lambda what, done, total: report(f"preparing {what}", done, total))


def _download(name: str, report: Report) -> list[Path]:
    from specdec_onnx.models.catalog import lookup
    from specdec_onnx.models.download import fetch

    return [fetch(file, report) for file in lookup(name).files]


def _export(files: list[Path], folder: Path, report: Report) -> None:
    from specdec_onnx.export.pipeline import export_pair

    target, *drafts = files
    export_pair(target, drafts[0] if drafts else None, folder, progress=report)
