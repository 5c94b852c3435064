"""Download and export a pair of the catalog."""

from pathlib import Path

from specdec_onnx.models.pair import folder_of
from specdec_onnx.models.progress import Progress, ProgressLine


def prepared_pair(name: str) -> Path:
    """Return the folder of the pair `name`, prepared now if it is missing, with progress on stderr."""
    folder = folder_of(name)
    if not folder.is_dir():
        with ProgressLine() as progress:
            files = _download(name, progress)
            _export(files, folder, lambda _, done, total: progress(f"exporting {name}", done, total))
    return folder


def prepare_pair(name: str, folder: Path, progress: Progress) -> None:
    """Prepare the pair `name` in `folder`; an exception raised by `progress` cancels it."""
    files = _download(name, progress)
    _export(files, folder, lambda what, done, total: progress(f"preparing {what}", done, total))


def _download(name: str, progress: Progress) -> list[Path]:
    from specdec_onnx.models.catalog import lookup
    from specdec_onnx.models.download import fetch

    return [fetch(file, progress) for file in lookup(name).files]


def _export(files: list[Path], folder: Path, progress: Progress) -> None:
    from specdec_onnx.export.pipeline import export_pair

    target, *drafts = files
    export_pair(target, drafts[0] if drafts else None, folder, progress=progress)
