"""Which catalog model drafts for which: by the spelling of every id, and by size."""

from dataclasses import replace

import pytest

from specdec_onnx.models.catalog import CatalogFile, Vocabulary, catalog, propose, vocabulary_digest
from specdec_onnx.models.errors import SpecdecError

WORDS = ["a", "b", None, "c"]
SMALL = CatalogFile(
    "small", "r", "0", 1, parameters=100, vocabulary=Vocabulary(4, vocabulary_digest(WORDS, 4))
)
SMALLER = replace(SMALL, name="smaller", parameters=60)
FOREIGN = replace(SMALL, name="foreign", parameters=1, vocabulary=Vocabulary(4, vocabulary_digest("abxc", 4)))
LONGER = replace(SMALL, name="longer", parameters=1, vocabulary=Vocabulary(9, vocabulary_digest(WORDS, 9)))
FILES = [SMALL, SMALLER, FOREIGN, LONGER]


def test_the_smallest_of_the_same_vocabulary() -> None:
    found = propose("big", WORDS, 300, FILES)
    assert found.file is SMALLER
    assert str(found) == "draft smaller: the same vocabulary, 5.0 times smaller"


def test_a_target_may_have_further_ids() -> None:
    assert propose("big", [*WORDS, "d"], 300, [SMALL]).ratio == 3


@pytest.mark.parametrize(
    ("spellings", "parameters", "why"),
    [
        (["a", "b", "x", "d"], 300, "none of its models has this vocabulary"),
        (WORDS[:3], 300, "none of its models has this vocabulary"),
        (WORDS, 119, "smaller, is 2.0 times smaller"),
        (WORDS, 60, "smaller, is 1.0 times smaller"),
    ],
)
def test_no_draft_says_why(spellings: list[str | None], parameters: int, why: str) -> None:
    with pytest.raises(SpecdecError, match="no draft for big") as caught:
        propose("big", spellings, parameters, FILES)
    assert why in caught.value.why
    assert "--draft none" in caught.value.fix


def test_the_catalog_s_own_pairs_are_found() -> None:
    for entry in catalog().values():
        assert all(file.vocabulary and file.parameters for file in entry.files)
        if entry.draft is not None:
            assert entry.target.vocabulary == entry.draft.vocabulary
            assert entry.target.parameters > 2 * entry.draft.parameters
