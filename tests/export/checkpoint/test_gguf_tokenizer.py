"""Tokenizers rebuilt from GGUF metadata encode as an independent plain BPE; so are the files beside them."""

import json
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from support.gguf_files import tokenizer_entries
from support.mixed_text import MIXED, random_texts
from support.slow_bpe import SlowBpe
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from specdec_onnx.export.checkpoint.gguf_tokenizer import GgufTokenizer
from specdec_onnx.export.checkpoint.pretokenizers import ALIASES, KINDS, kind_of

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXTS = [*MIXED, *random_texts(400)]


@lru_cache
def trained() -> Tokenizer:
    """Merges learnt over uncut text: many cross words, digits and lines, so a wrong cut shows in the ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    pieces = [
        text[at : at + 40] for text in [*MIXED, *random_texts(300, 1)] for at in range(0, len(text), 40)
    ]
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


def rebuilt(kind: str, **entries: Any) -> GgufTokenizer:
    metadata = tokenizer_entries(trained(), kind) | {f"tokenizer.ggml.{key}": entries[key] for key in entries}
    return GgufTokenizer("x.gguf", metadata | {"general.architecture": "llama"}, 1000)


def slow(tokenizer: Tokenizer, kind: str) -> SlowBpe:
    model = json.loads(tokenizer.to_str())["model"]
    whole = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    return SlowBpe(kind, model["vocab"], model["merges"], whole)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_ids_are_those_of_a_plain_bpe(kind: str) -> None:
    tokenizer = rebuilt(kind).build()
    reference = slow(tokenizer, kind)
    for text in TEXTS:
        assert ids(tokenizer, text) == reference.encode(text), text


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_decoding_gives_back_the_text(kind: str) -> None:
    tokenizer = rebuilt(kind).build()
    for text in TEXTS:
        kept = unicodedata.normalize("NFC", text) if KINDS[kind].nfc else text
        assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == kept


def test_the_kinds_do_differ() -> None:
    """Each way to cut differs on some text from each other way; else the comparison above shows nothing."""
    built = {kind: rebuilt(kind).build() for kind in KINDS}
    seen = {kind: [tuple(ids(tokenizer, text)) for text in TEXTS] for kind, tokenizer in built.items()}
    ways = {(kind.cuts, kind.as_gpt2, kind.nfc) for kind in KINDS.values()}
    assert len({tuple(found) for found in seen.values()}) == len(ways) == 17


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("gpt-4o", "HelloWorld it's ABCdef", ["Hello", "World", " it's", " ABCdef"]),
        ("tekken", "HelloWorld it's ABCdef", ["Hello", "World", " it", "'s", " ABCdef"]),
        ("gpt-4o", "12345 a.b/\n/x", ["123", "45", " a", ".b", "/\n/", "x"]),
        ("tekken", "12345 a.b/\n/x", ["1", "2", "3", "4", "5", " a", ".b", "/\n/", "x"]),
        ("gpt-4o", "(Foo)  BAR\n\n  e\u0301A", ["(Foo", ")", " ", " BAR", "\n\n", " ", " e\u0301", "A"]),
        ("tekken", "(Foo)  BAR\n\n  e\u0301A", ["(Foo", ")", " ", " BAR", "\n\n", " ", " e\u0301", "A"]),
    ],
)
def test_the_cased_kinds_split_words_at_capitals(kind: str, text: str, words: list[str]) -> None:
    found = KINDS[kind].pre_tokenizer().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in found] == words


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("gpt-4o", "sा.c", ["sा", ".c"]),
        ("tekken", "sा.c", ["sा", ".c"]),
        ("gpt-4o", "é\\aा@", ["é", "\\aा", "@"]),
        ("gpt-4o", "İZ?", ["İZ", "?"]),
        ("tekken", "İZ?", ["İZ", "?"]),
    ],
)
def test_marks_and_capitals_beyond_ascii_are_cut_as_the_published_patterns_say(
    kind: str, text: str, words: list[str]
) -> None:
    """Where llama.cpp cuts otherwise, it is by an approximation.

    The published patterns (OpenAI's o200k_base; Mistral's tekken without the contractions) have words of
    `[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+`, after one character that is neither letter, digit
    nor line end. So the mark U+093E goes on with the word that "s" starts, and ".c" is a word. llama.cpp's
    regex engine has no `\\p{Lu}`: it takes `\\p{L}` but not a-z for capitals, `\\p{L}` but not A-Z for small
    letters (its source cites the pattern above as the original). Marks are then no letters, and "İ" is a small one.
    """
    found = KINDS[kind].pre_tokenizer().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in found] == words


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("deepseek-r1-qwen", "qwen2"), ("starcoder", "smollm"), ("mpt", "gpt-2")),
        *(("exaone", "smollm"), ("llama3", "llama-bpe"), ("llama-v3", "llama-bpe"), ("falcon3", "llama-bpe")),
        *(("pixtral", "llama-bpe"), ("refact", "smollm"), ("smaug-bpe", "dbrx"), ("minerva-7b", "smollm")),
        *(("a.x-4.0", "gpt-2"), ("mellum", "gpt-2"), ("trillion", "gpt-2"), ("granite-docling", "gpt-2")),
        ("midm-2.0", "llama-bpe"),
    ],
)
def test_pre_tokenizers_with_the_rules_of_another(name: str, kind: str) -> None:
    tokenizer = rebuilt(name).build()
    reference = slow(tokenizer, kind)
    for text in TEXTS:
        composed = unicodedata.normalize("NFC", text)
        assert ids(tokenizer, composed) == reference.encode(composed), text


def test_every_further_name_is_checked() -> None:
    checked = test_pre_tokenizers_with_the_rules_of_another.pytestmark[0].args[1]
    assert dict(checked).keys() == ALIASES.keys()


@pytest.mark.parametrize("name", [None, "", "default"])
def test_a_file_that_names_no_pre_tokenizer_is_cut_as_llama_cpp_does(name: str | None) -> None:
    assert kind_of(name) == KINDS["default"]
    found = KINDS["default"].pre_tokenizer().pre_tokenize_str("it's 12345 a-b `c`")
    words = ["it", "'", "s", "Ġ", "123", "45", "Ġa", "-", "b", "Ġ`", "c", "`"]
    assert [word for word, _ in found] == words


CHAT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("kind", [1, 4])
def test_control_tokens_stored_as_other_types_are_control_tokens(kind: int) -> None:
    """Else a prompt's markers are spelled out, and the token that ends an answer is one like any other."""
    types = [
        kind if stored == 3 else stored
        for stored in tokenizer_entries(trained())["tokenizer.ggml.token_type"]
    ]
    for name in ("gpt-2", "llama-bpe"):
        stored, right = rebuilt(name, token_type=types), rebuilt(name)
        assert ids(stored.build(), CHAT) == ids(right.build(), CHAT)
        assert stored.ends == right.ends == (702, 700)
        assert all(token.special for token in stored.added().values())
        assert stored.build().to_str() == right.build().to_str()


@pytest.mark.parametrize(
    "end", ["<|eot_id|>", "<|end|>", "<end_of_turn>", "<EOT>", "<｜end▁of▁sentence｜>", "<|custom|>"]
)
def test_tokens_that_end_a_turn_are_known_by_their_spelling(end: str) -> None:
    base = tokenizer_entries(trained())
    tokens, types = [*base["tokenizer.ggml.tokens"], end], [*base["tokenizer.ggml.token_type"], 1]
    found = rebuilt("gpt-2", tokens=tokens, token_type=types)
    assert ids(found.build(), f"a{end}b")[1] == 703
    assert found.build().decode([703]) == ""
    assert (703 in found.ends) is (end != "<|custom|>")
    assert 703 in rebuilt("gpt-2", tokens=tokens, token_type=types, eot_token_id=703).ends


def test_an_end_that_a_file_names_is_a_control_token_though_its_spelling_is_not_known() -> None:
    base = tokenizer_entries(trained())
    tokens, types = [*base["tokenizer.ggml.tokens"], "<STOP>"], [*base["tokenizer.ggml.token_type"], 1]
    assert ids(rebuilt("gpt-2", tokens=tokens, token_type=types).build(), "<STOP>") != [703]
    found = rebuilt("gpt-2", tokens=tokens, token_type=types, eos_token_id=703)
    assert ids(found.build(), "<STOP>") == [703]
    assert found.ends[0] == 703


def test_a_token_that_merges_make_is_text_whatever_it_looks_like() -> None:
    base = tokenizer_entries(trained())
    pieces = ["<EO", "T>", "<EOT>"]
    tokens = [*base["tokenizer.ggml.tokens"], "EO", *pieces]
    types = [*base["tokenizer.ggml.token_type"], *[1] * 4]
    merges = ["E O", "< EO", "T >", "<EO T>", *base["tokenizer.ggml.merges"]]
    found = rebuilt("gpt-2", tokens=tokens, token_type=types, merges=merges)
    assert "<EOT>" not in {token.content for token in found.added().values()}
    assert found.ends == (702, 700)


def test_pieces_of_html_do_not_end_an_answer() -> None:
    """`</s>` is a piece of text in Qwen's and Gemma's vocabularies, and the end in those that say it is control."""
    base = tokenizer_entries(trained())
    tokens = [*base["tokenizer.ggml.tokens"], "</s>"]
    for kind, ends in ((1, (702, 700)), (4, (702, 700)), (3, (702, 700, 703))):
        types = [*base["tokenizer.ggml.token_type"], kind]
        assert rebuilt("gpt-2", tokens=tokens, token_type=types).ends == ends


def test_a_word_that_is_a_token_is_not_merged() -> None:
    """llama-bpe takes a whole word's token even where merging by rank would not arrive at it."""
    entries = tokenizer_entries(trained(), "llama-bpe")
    entries["tokenizer.ggml.tokens"].append("zqzq")
    entries["tokenizer.ggml.token_type"].append(1)
    for kind, whole in (("llama-bpe", True), ("qwen2", False)):
        tokenizer = GgufTokenizer("x", entries | {"tokenizer.ggml.pre": kind}, 1000).build()
        assert (ids(tokenizer, "zqzq") == [len(entries["tokenizer.ggml.tokens"]) - 1]) is whole


def test_special_and_user_defined_tokens() -> None:
    base = tokenizer_entries(trained(), "qwen2")
    tokens = [*base["tokenizer.ggml.tokens"], "<tool_call>", "[PAD704]"]
    types = [*base["tokenizer.ggml.token_type"], 4, 5]
    built = rebuilt("qwen2", tokens=tokens, token_type=types).build()
    added = built.get_added_tokens_decoder()
    assert {token.content: token.special for token in added.values()} == dict.fromkeys(SPECIAL, True) | {
        "<tool_call>": False
    }
    assert not any(
        token.normalized or token.lstrip or token.rstrip or token.single_word for token in added.values()
    )
    found = ids(built, "<tool_call>x<|im_end|>")
    assert (found[0], found[-1]) == (703, 702)
    assert built.decode(found) == "<tool_call>x"
    assert built.id_to_token(704) is None  # padding: no text has this id


def test_bos_goes_first_only_where_the_model_has_it_so() -> None:
    assert rebuilt("gpt-2").build().encode("a").ids == ids(trained(), "a")
    assert rebuilt("llama-bpe").build().encode("a").ids == [700, *ids(trained(), "a")]
    assert rebuilt("llama-bpe", add_bos_token=False).build().encode("a").ids == ids(trained(), "a")
    assert rebuilt("qwen2", add_bos_token=True).build().encode("a").ids == [700, *ids(trained(), "a")]


def test_the_files_beside(tmp_path: Path) -> None:
    rebuilt("qwen2").write(tmp_path)
    read = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert json.loads(read["generation_config.json"]) == {
        "bos_token_id": 700,
        "pad_token_id": 700,
        "eos_token_id": [702, 700],
    }
    settings = json.loads(read["tokenizer_config.json"])
    assert settings["tokenizer_class"] == "Qwen2Tokenizer"
    assert settings["eos_token"] == "<|im_end|>"
    assert settings["add_bos_token"] is False
    assert settings["added_tokens_decoder"]["701"]["content"] == "<|im_start|>"
    assert "chat_template" not in settings
    assert read["chat_template.jinja"] == tokenizer_entries(trained())["tokenizer.chat_template"]
    assert json.loads(read["special_tokens_map.json"])["pad_token"] == "<|endoftext|>"
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("a b").ids == ids(trained(), "a b")


def test_further_ends_of_turn_are_listed() -> None:
    found = rebuilt("gpt-2", eot_token_id=65, eom_token_id=66, eos_token_id=700)
    assert found.ends == (700, 65, 66, 702)


def test_ids_out_of_range_are_no_tokens() -> None:
    found = rebuilt("gpt-2", bos_token_id=5000, eos_token_id=702)
    assert "bos" not in found.ids
    assert found.ends == (702, 700)


def test_the_same_metadata_gives_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        rebuilt("smollm").write(folder)
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes()
