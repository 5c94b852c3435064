"""From a catalog name to a pair on disk: download and export what is missing."""

from pathlib import Path

from specdec_onnx.models.catalog import lookup
from specdec_onnx.models.download import fetch
from specdec_onnx.tui.pairs import folder_of
from specdec_onnx.tui.progress import work_on_stderr


def prepare(name: str) -> Path:
    """The exported pair of that catalog name, made now if it is not there yet; progress goes to stderr.

    Interrupted downloads go on where they stopped; an interrupted export leaves nothing and starts again.
    """
    folder = folder_of(name)
    if folder.is_dir():
        return folder
    from specdec_onnx.export.pipeline import export_pair

    with work_on_stderr(sizes=True) as report:
        target, *drafts = [fetch(file, report) for file in lookup(name).files]
    with work_on_stderr() as report:
        export_pair(
            target,
            drafts[0] if drafts else None,
            folder,
            progress=lambda _, done, total: report(f"exporting {name}", done, total),
        )
    return folder
