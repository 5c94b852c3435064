"""The pairs on this machine: size, memory, formats, without loading anything heavy."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.places import pairs_folder
from specdec_onnx.tui.history.store import Store


@dataclass(frozen=True, slots=True)
class LocalPair:
    """One line of the model picker; `memory` is what loading it as it is would take, `problem` why it can't be opened."""

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
    from specdec_onnx.runtime.footprint import footprints

    try:
        target, draft = members(path)
        models = {"target": target} | ({"draft": draft} if draft else {})
        size = sum(model.weight_bytes for model in models.values())
        memory = sum(need.total for need in footprints(models).values())
        formats = " + ".join(
            str(model.facts.get("format") or _from_name(model.graph)) for model in models.values()
        )
    except SpecdecError as error:
        return LocalPair(path, path.name, problem=error.what)
    except (OSError, ValueError, KeyError) as error:
        return LocalPair(path, path.name, problem=str(error))
    return LocalPair(path, path.resolve().name, formats, size, memory)


def _from_name(graph: Path) -> str:
    kind = graph.stem.removeprefix("model").strip("_")
    return kind or "onnx"


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
