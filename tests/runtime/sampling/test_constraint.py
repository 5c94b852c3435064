"""Constraints by themselves: what is refused, what stays bounded, and which tokens a grammar allows."""

import json
import sys
import time
from typing import Any

import pytest
from support.tiny_tokenizer import tiny_tokenizer
from support.tokenizer_kinds import tokenizer_kind
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Raw

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.tokenizer import Tokenizer
from specdec_onnx.runtime.sampling.constraint import LIMITS, LONGEST_GRAMMAR, Constraint, Guide
from specdec_onnx.runtime.text.detokenizer import continuation, token_bytes

SIZE = 384
EOS = (SIZE - 1, SIZE - 3)


def guide(constraint: Constraint, vocab_size: int = SIZE) -> Guide:
    return Guide(constraint, Tokenizer(tiny_tokenizer(SIZE)), vocab_size, EOS)


def spell(text: str) -> list[int]:
    return [tiny_tokenizer(SIZE).token_to_id(letter) for letter in text]


def spelled(tokens: list[int]) -> str:
    return Tokenizer(tiny_tokenizer(SIZE)).decode(tokens)


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[1, 2]",
        {"type": "text"},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.com/schema.json"},
        {"type": "string", "pattern": "(a"},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"enum": []},
        {"type": "object", "properties": [1]},
        {"type": "object", "unevaluatedItems": 3, "propertyNames": {"pattern": "x"}},
        False,
        {"not": {}},
        12,
        {"enum": [{1, 2}]},
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_followed_is_refused_with_one_clear_error(schema: Any) -> None:
    with pytest.raises(SpecdecError) as caught:
        Constraint.json_schema(schema)
    assert "schema" in str(caught.value) and "\n" not in caught.value.what


@pytest.mark.parametrize("pattern", ["(a", "a{2,1}", "(?=a)b", r"(a)\1", "\ud800", 5, "[z-a]"])
def test_a_regular_expression_that_cannot_be_followed_is_refused(pattern: Any) -> None:
    with pytest.raises(SpecdecError, match="regular expression"):
        Constraint.regex(pattern)


@pytest.mark.parametrize("grammar", ["start: x", "x: 'a'", "start: %import nothing", 'start: "a\n', "", None])
def test_a_lark_grammar_that_cannot_be_followed_is_refused(grammar: Any) -> None:
    with pytest.raises(SpecdecError, match="grammar"):
        Constraint.lark(grammar)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constraint.json_schema(nested(400)),
        lambda: Constraint.json_schema("[" * 100_000),
        lambda: Constraint.json_schema({"enum": ["x" * 100] * 4000}),
        lambda: Constraint.regex("a" * (LONGEST_GRAMMAR + 1)),
        lambda: Constraint.lark("start: " + "(" * 300 + '"a"' + ")" * 300),
    ],
)
def test_a_bomb_is_refused_within_seconds(make: Any) -> None:
    begun = time.monotonic()
    with pytest.raises(SpecdecError):
        make()
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "pattern",
    ["(a|aa)+b", "(a*)*b", "(((a{1,999}){1,999}){1,999}){1,999}", "(.*a){12}", "(x+x+)+y", ".*.*.*=.*"],
)
def test_a_pattern_that_backtracks_elsewhere_takes_linear_time_or_a_clear_error(pattern: str) -> None:
    begun = time.monotonic()
    try:
        state = guide(Constraint.regex(pattern))
        letter = next(token for token in spell("xa") if state.keep([token]))
        for _ in range(200):
            if not state.allowed()[letter]:
                break
            state.push(letter)
    except SpecdecError as error:
        assert "grammar" in str(error) or "expression" in str(error)
    assert time.monotonic() - begun < 20


def test_forced_text_is_drafted_as_the_tokenizer_spells_it_and_to_the_end_of_the_answer() -> None:
    state = guide(Constraint.json_schema({"const": {"the": "rain"}}))
    forced = state.forced()
    assert spelled(forced[:-1]) == '{"the": "rain"}'
    assert forced[-1] == EOS[0]
    for token in forced:
        assert state.allowed()[token]
        state.push(token)
    assert state.ended and not state.forced()


def test_the_end_is_allowed_exactly_where_the_grammar_may_end() -> None:
    state, encode = guide(Constraint.regex("[ab]{2,3}")), Tokenizer(tiny_tokenizer(SIZE)).encode
    for token, may_end in zip(encode("a") * 3, (False, False, True), strict=True):
        assert [state.allowed()[eos] for eos in EOS] == [may_end, may_end]
        state.push(token)
    assert state.allowed().nonzero()[0].tolist() == sorted(EOS)


def test_tokens_can_be_given_back_also_those_behind_the_end() -> None:
    state, tokens = guide(Constraint.regex("[ab]{2}")), Tokenizer(tiny_tokenizer(SIZE)).encode("a") * 2
    masks = []
    for token in (*tokens, *EOS):
        masks.append(state.allowed())
        state.push(token)
    for mask in reversed(masks):
        state.pop(1)
        assert (state.allowed() == mask).all()
    state.push(tokens[0])
    state.pop(0)
    assert (state.allowed() == masks[1]).all()


def test_a_draft_is_kept_up_to_what_the_grammar_forbids_and_to_the_end() -> None:
    state, encode = guide(Constraint.regex("[ab]{2,4}")), Tokenizer(tiny_tokenizer(SIZE)).encode
    a, x = *encode("a"), *encode("x")
    assert state.keep([a, a, x, a]) == [a, a]
    assert state.keep([EOS[0], a]) == []
    assert state.keep([a, a, EOS[1], a]) == [a, a, EOS[1]]
    assert state.allowed()[a] and not state.ended


def test_special_tokens_and_ids_without_a_token_are_never_text() -> None:
    state = guide(Constraint.regex(r"(.|\n)*"), SIZE + 40)
    allowed = state.allowed()
    assert allowed.size == SIZE + 40
    assert not allowed[SIZE:].any() and not allowed[SIZE - 2]  # <|im_start|>
    assert allowed[EOS[0]] and allowed[:256].sum() > 90


def test_a_model_of_fewer_ids_than_its_tokenizer_has_a_mask_of_its_own_width() -> None:
    state = Guide(Constraint.regex("a+"), Tokenizer(tiny_tokenizer(SIZE)), 300, (299,))
    assert state.allowed().size == 300


def test_a_model_that_cannot_end_an_answer_is_told_so() -> None:
    with pytest.raises(SpecdecError, match="no token that ends one"):
        Guide(Constraint.regex("a"), Tokenizer(tiny_tokenizer(SIZE)), SIZE, ())


@pytest.mark.parametrize(
    "kind", ["none", "bytes, then stripped", "nested", "word ends, then fused", "pattern over all"]
)
def test_the_grammar_does_not_read_special_tokens_whatever_the_decoder(kind: str) -> None:
    tokenizer = Tokenizer(tokenizer_kind(kind))
    spelled = token_bytes(tokenizer)
    assert len(spelled) == tokenizer.size
    assert all(not spelled[token] for token in tokenizer.special_tokens.values())


def test_the_grammar_reads_the_bytes_that_the_detokenizer_shows() -> None:
    for kind in ("nested", "bytes, then stripped"):
        tokenizer = Tokenizer(tokenizer_kind(kind))
        before = [token for token in range(tokenizer.size) if tokenizer.spelling(token) == "word"]
        for token, data in enumerate(token_bytes(tokenizer)):
            shown = continuation(tokenizer, before, [token])
            text = data.decode(errors="replace")
            assert shown == text or text.rstrip(" ") == shown.rstrip(" "), (kind, tokenizer.spelling(token))


def test_without_llguidance_one_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(SpecdecError, match=r"specdec-onnx\[grammar\]"):
        Constraint.regex("a")


def test_a_schema_may_be_text_a_mapping_or_anything_goes() -> None:
    schema = {"type": "integer"}
    assert Constraint.json_schema(schema).grammar == Constraint.json_schema(json.dumps(schema)).grammar
    assert guide(Constraint.json_schema(True)).allowed().any()


def sentencepiece() -> Tokenizer:
    """A tokenizer that puts a blank before every text, writes blanks as ▁, and spells rare letters in bytes."""
    letters = [*map(chr, range(33, 127)), "▁", "ab", "▁{", "▁a"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("a", "b"), ("▁", "{"), ("▁", "a")]
    raw = Raw(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in pieces[:3]])
    return Tokenizer(raw)


def test_a_tokenizer_with_blanks_before_words_and_letters_in_bytes_spells_forced_text_exactly() -> None:
    tokenizer = sentencepiece()
    state = Guide(Constraint.json_schema({"const": {"é": "漢 ab"}}), tokenizer, tokenizer.size, (2,))
    forced = state.forced()
    before = tokenizer.encode("x")
    assert forced[-1] == 2
    assert continuation(tokenizer, before, forced[:-1]) == '{"é": "漢 ab"}'
    assert tokenizer.id_of("ab") in forced and tokenizer.id_of("▁{") not in forced
    assert state.keep(forced) == forced


def test_half_a_letter_in_bytes_may_only_be_followed_by_its_other_half() -> None:
    tokenizer = sentencepiece()
    state = Guide(Constraint.regex("é|漢"), tokenizer, tokenizer.size, (2,))
    allowed = [tokenizer.spelling(token) for token in state.allowed().nonzero()[0]]
    assert allowed == ["<0xC3>", "<0xE6>"]
    state.push(tokenizer.id_of("<0xC3>") or 0)
    assert [tokenizer.spelling(token) for token in state.allowed().nonzero()[0]] == ["<0xA9>"]


def test_a_schema_that_never_ends_is_refused_before_the_answer() -> None:
    endless = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}
    with pytest.raises(SpecdecError, match="no text can satisfy it"):
        guide(Constraint.json_schema(endless))


def test_a_pattern_that_exceeds_a_limit_on_the_way_ends_with_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(LIMITS, "max_lexer_states", 100)
    constraint = Constraint.regex("(.*a.{30}){3}")
    with pytest.raises(SpecdecError, match="the grammar cannot be followed") as caught:
        state = guide(constraint)
        for letter in "axb" * 200:
            assert state.allowed()[spell(letter)[0]]
            state.push(spell(letter)[0])
    assert "states" in caught.value.why
