"""Who writes the models of an export, and how they take their turns."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec_onnx.export.assemble import ModelWriter, Order, Writer
from specdec_onnx.export.checkpoint.base import Checkpoint
from specdec_onnx.export.depth import DepthWriter
from specdec_onnx.export.ready import ReadyModel, ReadyWriter
from specdec_onnx.export.report import size_by_part
from specdec_onnx.models.errors import SpecdecError

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how many of how many steps are finished."""


def writers_of(
    sources: Mapping[str, Checkpoint | ReadyModel], orders: Mapping[str, Order], folder: Path
) -> dict[str, Writer]:
    """A writer for each role's subfolder of `folder`, which are filled in turn."""
    return {role: _writer(sources[role], folder / role, order) for role, order in orders.items()}


def build(writers: Mapping[str, Writer], progress: Progress) -> dict[str, dict[str, Any]]:
    """Write the graphs; returns each role's part of the report."""
    entries: dict[str, dict[str, Any]] = {}
    total, before = sum(writer.steps for writer in writers.values()), 0
    for role, writer in writers.items():

        def step(what: str, done: int, _: int, role: str = role, before: int = before) -> None:
            progress(f"{role}: {what}" if role else what, before + done, total)

        sizes = writer.build(step)
        entries[role] = {
            "format": writer.format_name,
            "size_bytes": size_by_part(sizes),
            **writer.findings,
        }
        before += writer.steps
    return entries


def _writer(source: Checkpoint | ReadyModel, folder: Path, order: Order) -> Writer:
    if order.depth is not None:
        if isinstance(source, ReadyModel) or order.graph == "portable":
            why = "its graph is not built layer by layer here"
            raise SpecdecError("the draft cannot be shortened", why, "leave out --draft-layers")
        return DepthWriter(source, folder, order, folder.parent / "target")
    if isinstance(source, ReadyModel):
        return ReadyWriter(source, folder)
    if order.graph == "portable":
        from specdec_onnx.export.portable import PortableWriter

        return PortableWriter(source, folder, order)
    return ModelWriter(source, folder, order)
