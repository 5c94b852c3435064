"""A target model with the draft that may propose tokens for it: where it is, how it is opened, whether the two fit."""

import filecmp
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specdec_onnx.models.catalog import catalog
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, inside, open_model, read_json, section
from specdec_onnx.models.system import home, user_path
from specdec_onnx.models.tokenizer import Tokenizer

_SHOWN = 3


@dataclass(frozen=True)
class Pair:
    """A target, and a draft that fits it or None; `path` is the folder that was opened."""

    path: Path
    target: ModelFolder
    draft: ModelFolder | None = None

    @property
    def models(self) -> dict[str, ModelFolder]:
        """The models by role: "target", and "draft" if there is one."""
        return {"target": self.target} | ({"draft": self.draft} if self.draft else {})


def open_pair(path: Path | str, draft: Path | str | None = None) -> Pair:
    """Open a pair folder, or a model folder and optionally a draft's. Raises SpecdecError if the draft does not fit."""
    path = Path(path)
    target, own_draft = members(path)
    drafter = open_model(_existing(str(draft)) or draft) if draft is not None else own_draft
    if drafter is not None:
        require_compatible(target, drafter)
    return Pair(path, target, drafter)


def members(path: Path) -> tuple[ModelFolder, ModelFolder | None]:
    """The models of a folder, neither compared nor loaded; the draft is None if there is none."""
    model = section(read_json(path / "genai_config.json"), "model")
    names = [section(model, role).get("filename") for role in ("decoder", "draft")]
    if all(names):
        return _model_of(path, str(names[0])), _model_of(path, str(names[1]))
    if (path / "target").is_dir():
        drafts = path / "draft"
        return open_model(path / "target"), open_model(drafts) if drafts.is_dir() else None
    return open_model(path), None


def _model_of(root: Path, name: str) -> ModelFolder:
    """The model whose graph genai_config.json names; the nearest folder with a config and a tokenizer describes it."""
    graph = inside(root, name)
    if not graph.is_file():
        raise SpecdecError(
            f"no ONNX graph at {graph}",
            "genai_config.json names it, but it is missing",
            "export the pair again",
        )
    above = [folder for folder in graph.parents if folder == root or root in folder.parents]
    return open_model(next((folder for folder in above if _describes(folder)), root), graph)


def _describes(folder: Path) -> bool:
    described = (folder / "config.json").is_file() or (folder / "genai_config.json").is_file()
    return described and (folder / "tokenizer.json").is_file()


def misfits(target: ModelFolder, draft: ModelFolder) -> list[str]:
    """Why `draft` cannot draft for `target`: token ids that mean different things. Nothing else matters."""
    if _same_files(target, draft):
        return []
    ours, theirs = target.tokenizer, draft.tokenizer
    return [*_special_problems(ours, theirs), *_id_problems(ours, theirs)]


def _same_files(target: ModelFolder, draft: ModelFolder) -> bool:
    files = target.path / "tokenizer.json", draft.path / "tokenizer.json"
    if target.declared_tokens != draft.declared_tokens:
        return False
    return all(file.is_file() for file in files) and filecmp.cmp(*files, shallow=False)


def _special_problems(ours: Tokenizer, theirs: Tokenizer) -> list[str]:
    mine, other = ours.special_tokens, theirs.special_tokens
    return [
        f"special token {text} has id {mine[text]} in the target but {other[text]} in the draft"
        for text in sorted(mine.keys() & other.keys(), key=mine.__getitem__)
        if mine[text] != other[text]
    ]


def _id_problems(ours: Tokenizer, theirs: Tokenizer) -> list[str]:
    mine, other = ours.spellings, theirs.spellings
    if mine == other:
        return []
    both = enumerate(zip(mine, other, strict=False))
    differ = [token for token, (our, their) in both if their is not None and our != their]
    beyond = [token for token in range(ours.size, theirs.size) if other[token] is not None]
    problems = []
    if differ:
        listed = _listed(differ, lambda token: _difference(ours, theirs, token))
        problems.append(f"{len(differ):,} of {min(ours.size, theirs.size):,} ids differ: {listed}")
    if beyond:
        listed = _listed(beyond, lambda token: f"{token} is {_quoted(theirs.token_text(token))}")
        whose = f"{len(beyond):,} of the draft's ids are outside the target's vocabulary of {ours.size:,}"
        problems.append(f"{whose}: {listed}")
    return problems


def _difference(ours: Tokenizer, theirs: Tokenizer, token: int) -> str:
    mine, other = ours.token_text(token), theirs.token_text(token)
    if mine == other:  # parts of a character all read U+FFFD: show how the vocabulary spells them
        mine, other = ours.spellings[token] or "", theirs.spellings[token] or ""
    has = _quoted(mine) if ours.spellings[token] is not None else "nothing"
    return f"token {token} is {has} in the target but {_quoted(other)} in the draft"


def _listed(tokens: list[int], describe: Callable[[int], str]) -> str:
    more = len(tokens) - _SHOWN
    return "; ".join(map(describe, tokens[:_SHOWN])) + (f"; and {more:,} more" if more > 0 else "")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def require_compatible(target: ModelFolder, draft: ModelFolder) -> None:
    """Raise SpecdecError, with every problem, if `draft` cannot draft for `target`."""
    if problems := misfits(target, draft):
        raise SpecdecError(
            f"{draft.name} cannot draft for {target.name}: the same token ids mean different things",
            "; ".join(problems),
            "choose a draft with the target's tokenizer (a smaller model of the same family), or use no draft",
        )


def pairs_folder() -> Path:
    """Where exported pairs live, one folder each."""
    return home() / "pairs"


def folder_of(name: str) -> Path:
    """Where the pair of that catalog name is, or will be, exported."""
    return pairs_folder() / name


def exported() -> list[str]:
    """Names of the pairs that were exported to the home folder."""
    folder = pairs_folder()
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def locate(pair: str | Path) -> Path:
    """The folder that PAIR means: a path, or the name of an exported pair. Raises SpecdecError if there is neither."""
    name = str(pair)
    if name and (path := _existing(name)) is not None:
        return path
    names = exported()
    if name in names:
        return folder_of(name)
    have = (
        f"the pairs exported here are: {', '.join(names)}" if names else "no pair has been exported here yet"
    )
    fix = f"give a folder made by specdec-export, or one of the catalog's names: {', '.join(catalog())}"
    if name in catalog():
        fix = f"specdec-export {name} -o {folder_of(name)}"
    raise SpecdecError(
        f"no pair at {name!r}", f"it is neither a folder nor the name of an exported pair; {have}", fix
    )


def _existing(name: str) -> Path | None:
    """`name` as a path, in which a leading ~ is the user's home; None when nothing is there."""
    path = user_path(name)
    return path if os.path.exists(path) else None  # noqa: PTH110 - the method raises for names too long for a path
