"""From sources to a folder that opens: a single model or a pair, whole or not at all."""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from specdec_onnx.export.checkpoint import Checkpoint, open_checkpoint
from specdec_onnx.export.choose_format import FormatWriter
from specdec_onnx.export.graph.architecture import FAMILIES
from specdec_onnx.export.graph.genai_config import pair_config
from specdec_onnx.export.graph.model_writer import CONTEXT, Cache, Depth, ModelWriter, Order, Writer
from specdec_onnx.export.layer_pruning import DepthWriter, TokenCost
from specdec_onnx.export.prebuilt import ReadyModel, ReadyWriter, find_ready
from specdec_onnx.export.quality.measure import steady_cost_ms
from specdec_onnx.export.quality.report import read_report, size_by_part, write_report
from specdec_onnx.export.quantization.linear import parse_format
from specdec_onnx.export.staging import staged, write_json
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model, read_json
from specdec_onnx.models.pair import open_pair, require_compatible
from specdec_onnx.models.progress import Progress, silent
from specdec_onnx.models.system import peak_memory


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


TARGET_BLOCK, DRAFT_BLOCK = 32, 128
"""int4 block sizes: small for a target's quality, large for a draft's speed."""

CANDIDATES = ("w8a8", "int4")
"""The target formats that "auto" measures."""

TRIM = 32768
"""Token ids a draft's head keeps, beside the special tokens, unless told otherwise."""


@dataclass(frozen=True)
class Options:
    """How a pair is made; a `target_format` of "auto" is chosen by measuring.

    `trim` is how many token ids the draft's head keeps, None for all; `trim_by` which ones: the "lowest", or those of
    the highest "frequency" in built-in text. `smooth`: w8a8 and int4 are fitted to what the model reads of built-in text. `graph`: "fused", or "portable" for
    families the graph builder does not know (through Optimum, without smoothing). `draft_layers`: how many of the
    draft's layers are kept, "auto" for as many as pay, None for all. `cache` is the type of keys and values.
    """

    target_format: str = "w8a8"
    draft_format: str = "int4"
    trim: int | None = TRIM
    context: int = CONTEXT
    smooth: bool = True
    graph: str = "fused"
    trim_by: str = "lowest"
    draft_layers: Depth | None = None
    cache: Cache = "fp32"

    def target(self) -> Order:
        """The order for the target; SpecdecError for an unknown format."""
        auto = self.target_format == "auto"
        formats = [
            parse_format(name, TARGET_BLOCK) for name in (CANDIDATES if auto else (self.target_format,))
        ]
        candidates = tuple(formats) if auto else ()
        whole = Order(formats[0], None, self.context, self.smooth, self.graph, cache=self.cache)
        return replace(whole, candidates=candidates)

    def draft(self) -> Order:
        """The order for the draft; SpecdecError for an unknown format."""
        format = parse_format(self.draft_format, DRAFT_BLOCK)
        whole = Order(format, self.trim, self.context, self.smooth, self.graph, self.trim_by)
        return replace(whole, depth=self.draft_layers, cache=self.cache)


Source = str | Path | Checkpoint

_SHARED_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
_QUALITY = ("kl_mean", "top1_agreement", "kept_probability", "quality_reference", "quality_tokens")


def export_model(
    source: Source,
    out: Path,
    *,
    format: str = "w8a8",
    trim: int | None = None,
    context: int = CONTEXT,
    smooth: bool = True,
    graph: str = "fused",
    measure: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Export one checkpoint to a model folder at `out`, its head trimmed if asked; the words are those of `Options`.

    SpecdecError, and no folder, when that fails.
    """
    order = Order(parse_format(format, TARGET_BLOCK), trim, context, smooth, graph)
    return _export({"": source}, {"": order}, out, measure, force, progress or silent)


def export_pair(
    target_source: Source,
    draft_source: Source | None,
    out: Path,
    options: Options | None = None,
    *,
    measure: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Export a target and its draft to a pair folder at `out`, or the target alone to a model folder.

    With `measure`, report.json also holds forward costs and the quantization's loss, taken once the folder is
    complete. SpecdecError, and no folder, when a source is unusable or the two don't fit.
    """
    options = options or Options()
    if draft_source is None and options.draft_layers is not None:
        raise SpecdecError(
            "there is no draft to shorten", "--draft-layers was given", "name a draft, or leave it out"
        )
    if draft_source is None:
        return _export({"": target_source}, {"": options.target()}, out, measure, force, progress or silent)
    orders = {"target": options.target(), "draft": options.draft()}
    sources = {"target": target_source, "draft": draft_source}
    return _export(sources, orders, out, measure, force, progress or silent)


def _export(
    sources: Mapping[str, Source],
    orders: Mapping[str, Order],
    out: Path,
    measure: bool,
    force: bool,
    progress: Progress,
) -> Path:
    """Export each role's source into its subfolder ("" is `out` itself)."""
    began = time.perf_counter()
    checkpoints = {role: _open(source) for role, source in sources.items()}
    with staged(out, force=force) as folder:
        writers = writers_of(checkpoints, orders, folder)
        models = [writer.describe() for writer in writers.values()]
        if len(models) > 1:
            require_compatible(*models)
        entries = build(writers, progress)
        if len(models) > 1:
            _join(folder)
        open_pair(folder)
        write_report(folder, _report(entries, time.perf_counter() - began))
    if measure:
        try:
            _measure(out, checkpoints, progress, began)
        except OSError as error:
            raise SpecdecError(
                f"{out} is complete, but what was measured could not be kept",
                str(error),
                "check the free space and the permissions",
            ) from error
    return out


def _join(folder: Path) -> None:
    """Write what makes a pair of folder/target and folder/draft."""
    roles = ("target", "draft")
    for name in _SHARED_FILES:
        if (folder / "target" / name).is_file():
            shutil.copyfile(folder / "target" / name, folder / name)
    facts = {role: read_json(folder / role / "specdec.json") for role in roles}
    write_json(folder / "specdec.json", {role: {"format": facts[role]["format"]} for role in roles})
    write_json(
        folder / "genai_config.json",
        pair_config(*(read_json(folder / role / "genai_config.json") for role in roles)),
    )


def _report(entries: Mapping[str, dict[str, Any]], seconds: float) -> dict[str, Any]:
    whole = {"export_seconds": round(seconds, 2), "peak_memory_bytes": peak_memory()}
    return {**entries.get("", entries), **whole}


def _measure(
    out: Path, checkpoints: Mapping[str, Checkpoint | ReadyModel], progress: Progress, began: float
) -> None:
    """Complete report.json and each model's facts; `began` is when the export did."""
    from specdec_onnx.export.quality.measure import measure
    from specdec_onnx.export.quality.trial import try_out

    report = dict(read_report(out))
    for done, (role, checkpoint) in enumerate(checkpoints.items()):
        progress(f"measuring {role}".strip(), done, len(checkpoints) + 1)
        model = open_model(out / role)
        found = measure(model, checkpoint if _has_float_model(checkpoint) else None)
        report |= {role: report[role] | found} if role else found
        quality = {key.removeprefix("quality_"): found[key] for key in _QUALITY if key in found}
        if quality:
            write_json(model.path / "specdec.json", {**model.facts, "quality": quality})
        write_report(out, report)
    progress("trying it out", len(checkpoints), len(checkpoints) + 1)
    report |= try_out(out, report)
    write_report(out, report | {"whole_seconds": round(time.perf_counter() - began, 2)})
    progress("measured", len(checkpoints) + 1, len(checkpoints) + 1)


def _open(source: Source) -> Checkpoint | ReadyModel:
    if not isinstance(source, str | Path):
        return source
    return find_ready(Path(source).expanduser()) or open_checkpoint(source)


def _has_float_model(source: Checkpoint | ReadyModel) -> TypeGuard[Checkpoint]:
    """Whether its quality can be told: the float reference knows the families of the fused graph."""
    return not isinstance(source, ReadyModel) and source.config.get("model_type") in FAMILIES
