"""Text round trips, special tokens as ids or as plain text, and ids that have no token."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.folders import SPECIAL, byte_level_tokenizer
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models
from tokenizers.processors import TemplateProcessing

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.tokenizer import Tokenizer

TEXT = "héllo  wörld\n\t北京 🙂"


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level_tokenizer(["hello", "world"]))


def test_round_trip(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_special_text_is_one_id_or_plain_text(tokenizer: Tokenizer) -> None:
    end = tokenizer.id_of("<|im_end|>")
    text = "a<|im_end|>b"
    assert tokenizer.encode(text).count(end) == 1
    plain = tokenizer.encode(text, special=False)
    assert not set(tokenizer.special_tokens.values()).intersection(plain)
    assert tokenizer.decode(plain) == text
    assert tokenizer.encode(text).count(end) == 1, "the plain reading must not stick"


def test_special_ids_are_left_out_unless_asked_for(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>")
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special=False) == "a<|im_end|>"
    assert tokenizer.special_tokens.keys() == set(SPECIAL)


def test_size_counts_to_the_last_token_and_padding_is_silent(tokenizer: Tokenizer) -> None:
    assert tokenizer.size == 256 + len("ello") + len("orld") + len(SPECIAL)
    assert tokenizer.token_text(tokenizer.size) == ""
    assert tokenizer.decode([tokenizer.size + 5, *tokenizer.encode("x")]) == "x"


def test_size_counts_over_holes() -> None:
    tokenizer = Tokenizer(RawTokenizer(models.BPE(vocab={"a": 0, "b": 2, "c": 5}, merges=[])))
    assert tokenizer.spellings == ["a", None, "b", None, None, "c"]
    assert tokenizer.size == 6


def test_no_bos_is_added_but_the_models_prefix_is_known() -> None:
    raw = byte_level_tokenizer()
    bos = raw.token_to_id("<|endoftext|>")
    raw.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", bos)]
    )
    tokenizer = Tokenizer(raw)
    assert tokenizer.encode("a") == [raw.token_to_id("a")]
    assert tokenizer.prefix_ids == (bos,)
    assert Tokenizer(byte_level_tokenizer()).prefix_ids == ()


def test_threads_do_not_mix_the_two_readings(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>x<|im_end|>" * 50
    expected = {special: tokenizer.encode(text, special=special) for special in (True, False)}
    with ThreadPoolExecutor(4) as pool:
        kinds = [True, False] * 40
        found = list(pool.map(lambda special: tokenizer.encode(text, special=special), kinds))
    assert found == [expected[special] for special in kinds]


@pytest.mark.parametrize(("content", "says"), [(None, "is missing"), ("{", "is not a tokenizer")])
def test_missing_or_broken_file(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SpecdecError, match=says):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("direction", ["left", "right"])
def test_what_serves_training_is_off(tmp_path: Path, direction: str) -> None:
    """A tokenizer.json may say to cut, to fill up and to draw tokens: prompts are read whole, and always the same."""
    raw = byte_level_tokenizer(["hello", "world"])
    expected = raw.encode(TEXT * 20).ids
    assert len(expected) > 64
    raw.model.dropout = 0.9
    raw.enable_truncation(8, direction=direction)
    raw.enable_padding(length=64, direction=direction)
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode(TEXT * 20) == expected
    assert tokenizer.encode("hello") == [raw.token_to_id("hello")]
    raw.enable_truncation(2)
    assert len(Tokenizer(raw).encode(TEXT)) > 8


@pytest.mark.parametrize("text", ["cut \ud83d", "\udcff", b"bytes", 7, None])
def test_what_is_no_text_is_refused(tokenizer: Tokenizer, text: Any) -> None:
    with pytest.raises(SpecdecError, match=r"the text (holds half a character|is)"):
        tokenizer.encode(text)
    assert tokenizer.encode("\U0001f642"), "both halves are a character"


def test_threads_may_decode_while_others_encode(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    with ThreadPoolExecutor(4) as pool:
        encoded = pool.map(lambda special: tokenizer.encode(TEXT, special=special), [True, False] * 200)
        decoded = pool.map(tokenizer.decode, [ids] * 400)
        assert set(decoded) == {TEXT} and all(found == ids for found in encoded)


def test_a_text_that_the_tokenizer_cannot_read_is_one_error() -> None:
    tokenizer = Tokenizer(RawTokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)])))
    assert tokenizer.encode("a") == [1]
    for read in (tokenizer.encode, tokenizer.encoding):
        with pytest.raises(SpecdecError, match="cannot read this text") as caught:
            read("b")
        assert "unk_id" in caught.value.why
