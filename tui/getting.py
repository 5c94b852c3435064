"""From a catalog name to a pair on disk, telling a callback how far it is."""

from collections.abc import Callable
from pathlib import Path

Report = Callable[[str, int, int], None]


def get_pair(name: str, folder: Path, report: Report) -> None:
    """Download what is missing, then export; an interrupted export leaves no folder.

    `report(what, done, total)` may raise to give it up; downloads go on from there the next time.
    """
    from specdec_onnx.export.pipeline import export_pair
    from specdec_onnx.models.catalog import lookup
    from specdec_onnx.models.download import fetch

    def exporting(what: str, done: int, total: int) -> None:
        report(f"preparing {what}", done, total)

    target, *drafts = [fetch(file, report) for file in lookup(name).files]
    export_pair(target, drafts[0] if drafts else None, folder, progress=exporting)
