"""From sources to a folder that opens: a single model or a pair, whole or not at all."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from specdec_onnx.export.assemble import CONTEXT, ModelWriter, Order, write_json
from specdec_onnx.export.checkpoint.base import Checkpoint
from specdec_onnx.export.genai import pair_config
from specdec_onnx.export.linear import parse_format
from specdec_onnx.export.staging import staged
from specdec_onnx.models.compatibility import require_compatible
from specdec_onnx.models.layout import read_json
from specdec_onnx.models.pair import open_pair

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how many of how many steps are finished."""

Source = str | Path | Checkpoint

TARGET_BLOCK, DRAFT_BLOCK = 32, 128
"""int4 block sizes: small for a target's quality, large for a draft's speed."""

TRIM = 32768
"""Leading token ids a draft's head keeps, beside the special tokens, unless told otherwise."""

_SHARED_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def export_model(
    source: Source,
    out: Path,
    *,
    format: str = "w8a8",
    trim: int | None = None,
    context: int = CONTEXT,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Export one checkpoint to a model folder at `out`; SpecdecError, and no folder, when it cannot be done."""
    order = Order(parse_format(format, TARGET_BLOCK), trim, context)
    checkpoint = _open(source)
    with staged(out, force=force) as folder:
        writer = ModelWriter(checkpoint, folder, order)
        writer.describe()
        _build([writer], progress)
    return out


def export_pair(
    target_source: Source,
    draft_source: Source | None,
    out: Path,
    *,
    target_format: str = "w8a8",
    draft_format: str = "int4",
    trim: int | None = TRIM,
    context: int = CONTEXT,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Export a target and its draft to a pair folder at `out`, or the target alone to a model folder."""
    if draft_source is None:
        return export_model(
            target_source, out, format=target_format, context=context, force=force, progress=progress
        )
    orders = {
        "target": Order(parse_format(target_format, TARGET_BLOCK), None, context),
        "draft": Order(parse_format(draft_format, DRAFT_BLOCK), trim, context),
    }
    checkpoints = {"target": _open(target_source), "draft": _open(draft_source)}
    with staged(out, force=force) as folder:
        writers = [ModelWriter(checkpoints[role], folder / role, order) for role, order in orders.items()]
        target, draft = (writer.describe() for writer in writers)
        require_compatible(target, draft)
        _build(writers, progress)
        _join(folder)
        open_pair(folder)
    return out


def _build(writers: Sequence[ModelWriter], progress: Progress | None) -> None:
    total, before = sum(writer.steps for writer in writers), 0
    for writer in writers:
        prefix = f"{writer.folder.name}: " if len(writers) > 1 else ""

        def step(what: str, done: int, _: int, prefix: str = prefix, before: int = before) -> None:
            if progress is not None:
                progress(prefix + what, before + done, total)

        writer.build(step)
        before += writer.steps


def _join(folder: Path) -> None:
    """Write what makes a pair of folder/target and folder/draft."""
    facts = {role: read_json(folder / role / "specdec.json") for role in ("target", "draft")}
    configs = [read_json(folder / role / "genai_config.json") for role in ("target", "draft")]
    for name in _SHARED_FILES:
        if (folder / "target" / name).is_file():
            shutil.copyfile(folder / "target" / name, folder / name)
    write_json(folder / "specdec.json", {role: {"format": facts[role]["format"]} for role in facts})
    write_json(folder / "genai_config.json", pair_config(*configs))


def _open(source: Source) -> Checkpoint:
    if not isinstance(source, str | Path):
        return source
    from specdec_onnx.export.checkpoint import open_checkpoint

    return open_checkpoint(source)
