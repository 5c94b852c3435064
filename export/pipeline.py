"""An export from start to end: sources, specs, writers, a staged folder, measurements, a report."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from specdec_onnx.export.checkpoint import TOKENIZER_FILES, Checkpoint, copy_files, open_checkpoint
from specdec_onnx.export.choose_format import FormatWriter
from specdec_onnx.export.graph.architecture import FAMILIES
from specdec_onnx.export.graph.genai_config import pair_config
from specdec_onnx.export.graph.model_writer import ModelWriter
from specdec_onnx.export.layer_pruning import PruningWriter, TokenCost
from specdec_onnx.export.prebuilt import PrebuiltModel, PrebuiltWriter, find_prebuilt
from specdec_onnx.export.quality.measure import measure_export, steady_cost_ms
from specdec_onnx.export.quality.report import size_by_part, write_report
from specdec_onnx.export.spec import ModelSpec, Options
from specdec_onnx.export.staging import staged, write_json
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, read_json
from specdec_onnx.models.pair import open_pair, require_compatible
from specdec_onnx.models.progress import Progress, silent
from specdec_onnx.models.system import peak_memory, user_path

Source = Checkpoint | PrebuiltModel


class Writer(Protocol):
    """Fills an empty folder with one model: first what describes it, then the graph."""

    @property
    def steps(self) -> int:
        """How many steps `build` reports."""

    @property
    def format_name(self) -> str:
        """The weight format, as people write it; known once the graph is written."""

    @property
    def findings(self) -> Mapping[str, Any]:
        """What else belongs in the report, once the graph is written."""

    def describe(self) -> ModelFolder:
        """Write tokenizer and config.json; the folder can be compared with another one, but not run."""

    def build(self, progress: Progress) -> dict[str, int]:
        """Write the graph and specdec.json; returns the bytes of each tensor."""


def export_pair(
    target: str | Path | Checkpoint,
    draft: str | Path | Checkpoint | None,
    out: Path,
    options: Options | None = None,
    *,
    measure: bool = False,
    force: bool = False,
    progress: Progress = silent,
) -> Path:
    """Export a target and its draft to a pair folder, or a target alone to a model folder.

    Args:
        target: A .gguf file, a folder with safetensors or an ONNX graph, or an open checkpoint.
        draft: Likewise; None for a model without a draft.
        out: The folder to make.
        options: How to export; None for the defaults.
        measure: Add forward costs, quality and speed-up to report.json, once the folder is complete.
        force: Replace an export that is already in `out`.
        progress: Called after each step.

    Returns:
        `out`.

    Raises:
        SpecdecError: A source is unusable, or the two don't fit. No folder is left.
    """
    began = time.perf_counter()
    sources, specs = _sources_and_specs(target, draft, options or Options())
    with staged(out, force=force) as folder:
        writers = _writers(sources, specs, folder)
        models = [writer.describe() for writer in writers.values()]
        if draft is not None:
            require_compatible(*models)
        report = _build(writers, sources, progress)
        if draft is not None:
            _join_pair(folder)
        open_pair(folder)
        seconds = round(time.perf_counter() - began, 2)
        write_report(folder, report | {"export_seconds": seconds, "peak_memory_bytes": peak_memory()})
    if measure:
        measure_export(
            out, {role: _float_source(source) for role, source in sources.items()}, progress, began
        )
    return out


def _sources_and_specs(
    target: str | Path | Checkpoint, draft: str | Path | Checkpoint | None, options: Options
) -> tuple[dict[str, Source], dict[str, ModelSpec]]:
    """By role, which is the model's subfolder too: "target" and "draft", or "" for a model without a draft."""
    if draft is not None:
        specs = {"target": options.target(), "draft": options.draft()}
        return {"target": _open(target), "draft": _open(draft)}, specs
    if options.draft_layers is not None:
        raise SpecdecError(
            "there is no draft to shorten", "--draft-layers was given", "name a draft, or leave it out"
        )
    return {"": _open(target)}, {"": options.target()}


def _open(source: str | Path | Checkpoint) -> Source:
    if not isinstance(source, str | Path):
        return source
    return find_prebuilt(user_path(source)) or open_checkpoint(source)


def _writers(
    sources: Mapping[str, Source], specs: Mapping[str, ModelSpec], folder: Path
) -> dict[str, Writer]:
    draft_cost = _draft_cost(sources["draft"], specs["draft"], folder) if "draft" in sources else None
    return {role: _writer(sources[role], spec, folder / role, draft_cost) for role, spec in specs.items()}


def _draft_cost(source: Source, spec: ModelSpec, folder: Path) -> Callable[[], float]:
    """A function that measures the milliseconds of a drafted token."""
    if isinstance(source, PrebuiltModel):
        return lambda: steady_cost_ms([source.model], (1,))[0][1]
    return lambda: TokenCost(source, spec, folder)(int(source.config["num_hidden_layers"]))


def _writer(source: Source, spec: ModelSpec, folder: Path, draft_cost: Callable[[], float] | None) -> Writer:
    if isinstance(source, PrebuiltModel):
        _require_plain(spec, "its graph is taken as it is")
        return PrebuiltWriter(source, folder)
    if spec.graph == "portable":
        from specdec_onnx.export.portable import PortableWriter

        _require_plain(spec, "a portable graph is traced once, for one format")
        return PortableWriter(source, folder, spec)
    if spec.candidates:
        return FormatWriter(source, folder, spec, draft_cost)
    if spec.layer_count is not None:
        return PruningWriter(source, folder, spec, folder.parent / "target")
    return ModelWriter(source, folder, spec)


def _require_plain(spec: ModelSpec, why: str) -> None:
    """SpecdecError for what only our own fused graph can do."""
    if spec.candidates:
        raise SpecdecError(
            "the target format cannot be chosen by measuring", why, "name one with --target-format"
        )
    if spec.layer_count is not None:
        why = "its graph is not built layer by layer here"
        raise SpecdecError("the draft cannot be shortened", why, "leave out --draft-layers")
    if spec.cache == "fp16":
        why = "only attention in our own fused graph takes half-precision keys and values"
        raise SpecdecError("the cache cannot be fp16", why, "leave out --cache")


def _build(
    writers: Mapping[str, Writer], sources: Mapping[str, Source], progress: Progress
) -> dict[str, Any]:
    """Write the graphs; returns the report so far."""
    report: dict[str, Any] = {}
    total, before = sum(writer.steps for writer in writers.values()), 0
    for role, writer in writers.items():

        def step(what: str, done: int, _: int, role: str = role, before: int = before) -> None:
            progress(f"{role}: {what}" if role else what, before + done, total)

        sizes = size_by_part(writer.build(step))
        entry = {"format": writer.format_name, "size_bytes": sizes, **writer.findings}
        if notes := sources[role].source.notes:
            entry["notes"] = [*entry.get("notes", ()), *notes]
        report |= {role: entry} if role else entry
        before += writer.steps
    return report


def _join_pair(folder: Path) -> None:
    """Write what makes a pair of folder/target and folder/draft."""
    copy_files(TOKENIZER_FILES, folder / "target", folder)
    roles = ("target", "draft")
    formats = {role: read_json(folder / role / "specdec.json")["format"] for role in roles}
    write_json(folder / "specdec.json", {role: {"format": format} for role, format in formats.items()})
    target, draft = (read_json(folder / role / "genai_config.json") for role in roles)
    write_json(folder / "genai_config.json", pair_config(target, draft))


def _float_source(source: Source) -> Checkpoint | None:
    """The source if its quality can be measured: the float model knows the families of the fused graph."""
    if isinstance(source, PrebuiltModel) or source.config.get("model_type") not in FAMILIES:
        return None
    return source
