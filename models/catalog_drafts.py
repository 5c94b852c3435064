"""Which of the catalog's models may draft for a given one: the same vocabulary, and much smaller."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from specdec_onnx.models.catalog import CatalogFile, catalog
from specdec_onnx.models.errors import SpecdecError

LEAST_RATIO = 2.0
"""How many times smaller a draft has to be: a larger one costs more than its tokens bring."""


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
    """The smallest fitting draft for the model called `name`, its ids spelled so; SpecdecError when none fits.

    A draft fits when each of its ids means the same in the target, which may have further ones.
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
    return f"the smallest with this vocabulary, {smallest.name}, is {share}; {LEAST_RATIO:g} times are needed"
