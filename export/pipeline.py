"""From sources to a folder that opens: a single model or a pair, whole or not at all."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from specdec_onnx.export.assemble import CONTEXT, Order
from specdec_onnx.export.checkpoint import open_checkpoint
from specdec_onnx.export.checkpoint.base import Checkpoint
from specdec_onnx.export.families import FAMILIES
from specdec_onnx.export.genai import pair_config
from specdec_onnx.export.linear import parse_format
from specdec_onnx.export.options import TARGET_BLOCK, Options
from specdec_onnx.export.ready import ReadyModel, find_ready
from specdec_onnx.export.report import read_report, write_report
from specdec_onnx.export.staging import staged, write_json
from specdec_onnx.export.writers import build, writers_of
from specdec_onnx.models.compatibility import require_compatible
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.models.layout import read_json
from specdec_onnx.models.pair import open_pair
from specdec_onnx.models.progress import Progress, silent
from specdec_onnx.runtime.memory import peak_memory

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
    from specdec_onnx.export.measure import measure
    from specdec_onnx.export.trial import try_out

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
