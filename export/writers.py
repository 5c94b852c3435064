"""Who writes the models of an export, and how they take their turns."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec_onnx.export.assemble import ModelWriter, Order, Writer
from specdec_onnx.export.best_format import FormatWriter
from specdec_onnx.export.checkpoint.base import Checkpoint
from specdec_onnx.export.depth import DepthWriter
from specdec_onnx.export.measure import steady_cost_ms
from specdec_onnx.export.ready import ReadyModel, ReadyWriter
from specdec_onnx.export.report import size_by_part
from specdec_onnx.export.slices import TokenCost
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.progress import Progress


def writers_of(
    sources: Mapping[str, Checkpoint | ReadyModel], orders: Mapping[str, Order], folder: Path
) -> dict[str, Writer]:
    """A writer for each role's subfolder of `folder`, which are filled in turn."""
    found: dict[str, Writer] = {}
    for role, order in orders.items():
        if order.candidates:
            token = _draft_cost(sources["draft"], orders["draft"], folder) if "draft" in orders else None
            found[role] = FormatWriter(_plain(sources[role], order), folder / role, order, token)
        else:
            found[role] = _writer(sources[role], folder / role, order)
    return found


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


def _plain(source: Checkpoint | ReadyModel, order: Order) -> Checkpoint:
    """The source of a model that is to be tried in several formats; SpecdecError if that can't be."""
    if isinstance(source, ReadyModel) or order.graph == "portable":
        why = (
            "its graph is taken as it is"
            if isinstance(source, ReadyModel)
            else "a portable graph is traced once, for one format"
        )
        raise SpecdecError(
            "the target format cannot be chosen by measuring", why, "name one with --target-format"
        )
    return source


def _draft_cost(source: Checkpoint | ReadyModel, order: Order, folder: Path) -> Callable[[], float]:
    """Tells the milliseconds of a drafted token, measured when asked."""
    if isinstance(source, ReadyModel):
        return lambda: steady_cost_ms([source.model], (1,))[0][1]
    return lambda: TokenCost(source, order, folder)(int(source.config["num_hidden_layers"]))


def _writer(source: Checkpoint | ReadyModel, folder: Path, order: Order) -> Writer:
    if order.depth is not None:
        if isinstance(source, ReadyModel) or order.graph == "portable":
            why = "its graph is not built layer by layer here"
            raise SpecdecError("the draft cannot be shortened", why, "leave out --draft-layers")
        return DepthWriter(source, folder, order, folder.parent / "target")
    if order.cache == "fp16" and (isinstance(source, ReadyModel) or order.graph == "portable"):
        why = "only attention in our own fused graph takes half-precision keys and values"
        raise SpecdecError("the cache cannot be fp16", why, "leave out --cache")
    if isinstance(source, ReadyModel):
        return ReadyWriter(source, folder)
    if order.graph == "portable":
        from specdec_onnx.export.portable import PortableWriter

        return PortableWriter(source, folder, order)
    return ModelWriter(source, folder, order)
