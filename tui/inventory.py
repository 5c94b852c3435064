"""The pairs on this machine: size, memory, formats, without loading anything heavy."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.history.store import Store
from specdec_onnx.tui.home import pairs_folder

CONTEXT = 4096
OVERHEAD = 1.15


@dataclass(frozen=True, slots=True)
class LocalPair:
    """One line of the model picker; `problem` says why it can't be opened."""

    path: Path
    name: str
    formats: str = ""
    size: int = 0
    memory: int = 0
    problem: str = ""

    @property
    def has_draft(self) -> bool:
        """Whether a draft model speculates for the target."""
        return "+" in self.formats


def local_pairs(extra: Iterable[Path] = ()) -> list[LocalPair]:
    """Pairs in the user's folder, in ./pairs and at the extra paths, by name."""
    found: dict[Path, LocalPair] = {}
    for folder in [*extra, *_children(pairs_folder()), *_children(Path("pairs"))]:
        if folder.exists() and (real := folder.resolve()) not in found:
            found[real] = describe(folder)
    return sorted(found.values(), key=lambda pair: pair.name.lower())


def _children(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]


def describe(path: Path) -> LocalPair:
    """Read the small files of a pair; what is wrong with it is part of the answer."""
    from specdec_onnx.models.pair import members

    try:
        target, draft = members(path)
        models = [target] + ([draft] if draft else [])
        size = sum(model.weight_bytes for model in models)
        cache = sum(cache_bytes(model.config, CONTEXT) for model in models)
        formats = " + ".join(str(model.facts.get("format") or _from_name(model.graph)) for model in models)
    except SpecdecError as error:
        return LocalPair(path, path.name, problem=error.what)
    except (OSError, ValueError, KeyError) as error:
        return LocalPair(path, path.name, problem=str(error))
    return LocalPair(path, path.resolve().name, formats, size, int(size * OVERHEAD + cache))


def _from_name(graph: Path) -> str:
    kind = graph.stem.removeprefix("model").strip("_")
    return kind or "onnx"


def cache_bytes(config: Mapping[str, Any], context: int) -> int:
    """Bytes of a float32 key-value cache for `context` tokens, as the config describes it; 0 when it doesn't."""
    heads = int(config.get("num_attention_heads") or 0)
    if not heads:
        return 0
    width = int(config.get("head_dim") or int(config.get("hidden_size") or 0) // heads)
    groups = int(config.get("num_key_value_heads") or heads)
    return 2 * 4 * int(config.get("num_hidden_layers") or 0) * groups * width * context


def measured_speeds(store: Store, answers: int = 20) -> dict[str, float]:
    """Median decode speed in tokens per second of the latest answers, by pair."""
    query = """
    SELECT conversation.model, turn.statistics FROM turn JOIN conversation ON conversation.id = turn.conversation
    WHERE turn.role = 'assistant' AND turn.reason IS NOT NULL ORDER BY turn.id DESC LIMIT 1000
    """
    speeds: dict[str, list[float]] = {}
    for model, stored in store.rows(query):
        statistics = json.loads(stored)
        speed = statistics.get("decode_tokens_per_second") or 0.0
        known = speeds.setdefault(statistics.get("pair") or model, [])
        if speed and statistics.get("mode") != "plain" and len(known) < answers:
            known.append(speed)
    return {name: sorted(known)[len(known) // 2] for name, known in speeds.items() if known}


def gigabytes(size: int) -> str:
    """`1.6 GB`, `135 MB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def free_memory() -> int | None:
    """Bytes of memory that are free now, where the system tells."""
    try:
        import os

        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
