"""Text comes in whole characters and never from behind a stop string."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.tiny_tokenizer import tiny_tokenizer
from support.tokenizer_kinds import BYTES, DECODERS, tokenizer_kind

from specdec_onnx.models.tokenizer import Tokenizer
from specdec_onnx.runtime.text.detokenizer import Detokenizer, StopStrings, continuation

TOKENIZER = Tokenizer(tiny_tokenizer(384))
KINDS = {kind: Tokenizer(tokenizer_kind(kind)) for kind in DECODERS}
SIZE = next(iter(KINDS.values())).size
LLAMA = KINDS["llama"]
# kinds whose text is only known at the end
WAITING = {"pattern over all", "word ends, then fused", "ctc", "ctc as it is"}


def ids_of(*pieces: str) -> list[int]:
    """Ids of the spellings, the same in every kind."""
    found = [LLAMA.id_of(piece) for piece in pieces]
    return [token for token in found if token is not None]


def added(before: str, whole: str) -> str:
    while not whole.startswith(before):
        before = before[:-1]
    return whole[len(before) :]


BYTE_IDS = ids_of(*(f"<0x{byte:02X}>" for byte in BYTES), "a", "▁")
IDS = st.lists(st.one_of(st.integers(0, SIZE + 1), st.sampled_from(BYTE_IDS)), max_size=14)


@settings(max_examples=600, deadline=None)
@example([], ids_of("<0x0A>", "<0xF0>", "a"))
@example([], ids_of("<0x24>", "<0xA0>", "ha"))
@example([], ids_of("<0xF0>", "<0x9F>", "<0x98>", "<0x80>"))
@example(ids_of("a", "<0xC3>"), ids_of("<0xA9>", "a"))
@example(ids_of("a", "<0x0A>"), ids_of("<0xF0>", "▁Paris"))
@example(ids_of("<s>"), ids_of("▁Paris"))
@example(ids_of("▁is▁", "</s>"), ids_of("▁Paris", "</s>"))
@given(IDS, IDS)
def test_pieces_are_what_one_decode_of_the_whole_has_more_than_the_prompts(
    before: list[int], ids: list[int]
) -> None:
    for kind, tokenizer in KINDS.items():
        expected = added(tokenizer.decode(before), tokenizer.decode([*before, *ids]))
        assert continuation(tokenizer, before, ids) == expected, kind


@settings(max_examples=200, deadline=None)
@given(IDS, st.sampled_from(sorted(KINDS.keys() - WAITING)))
def test_an_ordinary_token_settles_what_was_held_back(ids: list[int], kind: str) -> None:
    stream, whole = Detokenizer(KINDS[kind]), [*ids, *ids_of("word", "a")]
    shown, text = "".join(map(stream.push, whole)), KINDS[kind].decode(whole)
    assert text.startswith(shown)
    assert len(text) - len(shown) <= (kind == "replaced over tokens"), "there an a may still change"


def test_what_is_broken_for_certain_is_not_held_back() -> None:
    broken = "\N{REPLACEMENT CHARACTER}"
    stream = Detokenizer(LLAMA)
    pieces = [stream.push(token) for token in ids_of("<0x41>", "<0xC3>", "<0xFF>", "<0x41>", "<0x80>")]
    assert pieces == ["", "", broken * 3, broken, broken]
    stream = Detokenizer(KINDS["byte-level"])
    assert [stream.push(token) for token in ids_of("ÿ", "Ã", "ÿ")] == [broken, "", broken * 2]


def test_the_rest_may_be_asked_for_at_any_time() -> None:
    stream = Detokenizer(LLAMA)
    assert stream.push(ids_of("<0x0A>")[0]) == ""
    assert (stream.rest(), stream.rest()) == ("\n", "\n")
    assert [stream.push(token) for token in ids_of("<0xF0>", "a")] == [
        "",
        "\N{REPLACEMENT CHARACTER}" * 2 + "a",
    ]


@pytest.mark.parametrize(
    ("before", "pieces"),
    [(["▁Paris", "▁is▁"], ["▁Paris"]), (["<s>"], ["▁Paris"]), (["a", "</s>", "<0x0A>"], ["▁Paris", "</s>"])],
)
def test_the_first_space_is_kept_where_the_text_goes_on(before: list[str], pieces: list[str]) -> None:
    text = continuation(LLAMA, ids_of(*before), ids_of(*pieces))
    assert text == ("Paris" if before == ["<s>"] else " Paris")


@pytest.mark.parametrize("kind", ["llama", "byte-level", "metaspace", "word ends"])
def test_a_long_answer_costs_no_more_a_token_than_a_short_one(kind: str) -> None:
    def seconds(count: int) -> float:
        stream, tokens = Detokenizer(KINDS[kind]), [token % SIZE for token in range(count)]
        start = time.process_time()
        for token in tokens:
            stream.push(token)
        return time.process_time() - start

    short, long = (min(seconds(count) for _ in range(3)) for count in (1_000, 10_000))
    assert long < 40 * short


@given(st.text(max_size=40))
def test_pieces_add_up_to_the_text(text: str) -> None:
    stream = Detokenizer(TOKENIZER)
    pieces = [stream.push(token) for token in TOKENIZER.encode(text, special=False)]
    assert "".join([*pieces, stream.rest()]) == text


def test_half_a_character_is_held_back() -> None:
    stream, parts = Detokenizer(TOKENIZER), TOKENIZER.encode("é漢🙂")
    assert len(parts) == 9
    pieces = [stream.push(token) for token in parts]
    assert [piece for piece in pieces if piece] == ["é", "漢", "🙂"]
    assert [pieces.index(piece) for piece in ("é", "漢", "🙂")] == [1, 4, 8]


def test_an_unfinished_character_is_marked_at_the_end() -> None:
    stream = Detokenizer(TOKENIZER)
    assert stream.push(TOKENIZER.encode("漢")[0]) == ""
    assert stream.rest() == "\N{REPLACEMENT CHARACTER}"


def test_special_tokens_give_no_text() -> None:
    stream = Detokenizer(TOKENIZER)
    assert [stream.push(token) for token in TOKENIZER.encode("a<|im_end|>b")] == ["a", "", "b"]


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "found"),
    [
        (("END",), ["a", "b E", "N", "D c"], "ab ", True),
        (("END",), ["a E", "N", "x"], "a ENx", False),
        (("\n\n",), ["one\n", "\ntwo"], "one", True),
        (("bc", "abcd"), ["xa", "bc", "d"], "xa", True),
        (("aab",), ["aa", "a", "b"], "a", True),
        ((), ["any", "thing"], "anything", False),
    ],
)
def test_stop_strings_may_span_pieces(
    stops: tuple[str, ...], pieces: list[str], shown: str, found: bool
) -> None:
    search = StopStrings(stops)
    text = ""
    for piece in pieces:
        text += search.push(piece)
        if search.found:
            break
    assert (text + ("" if search.found else search.flush()), search.found) == (shown, found)


@given(
    st.lists(st.text(alphabet="ab", max_size=3), max_size=12), st.text(alphabet="ab", min_size=1, max_size=3)
)
def test_what_is_shown_is_the_text_before_the_first_stop(pieces: list[str], stop: str) -> None:
    search, text = StopStrings((stop,)), ""
    for piece in pieces:
        if not search.found:
            text += search.push(piece)
    whole = "".join(pieces)
    assert search.found == (stop in whole)
    assert text + ("" if search.found else search.flush()) == whole.split(stop)[0]


@pytest.mark.parametrize(
    ("stop", "tokens", "shown", "found"),
    [
        ("<|im_end|>", ["a", "<|im_end|>"], "a", True),
        ("a<|im_end|>", ["ha", "a", "<|im_end|>"], "ha", True),
        ("<|im_end|>\n", ["a", "<|im_end|>", "<0x0A>", "a"], "a", True),
        ("<|im_end|>.", ["a", "<|im_end|>", "a"], "aa", False),
        ("\n<|im_end|>", ["a", "<0x0A>", "<|im_end|>"], "a", True),
        ("a<|im_end|>", ["a", "<0x0A>", "<|im_end|>", "a"], "a\na", False),
        ("<s></s>", ["a", "<0x0A>", "<s>", "</s>"], "a\n", True),
        ("<s></s>", ["a", "<0x0A>", "<s>", "a", "</s>"], "a\na", False),
        ("<s>a", ["a", "<0x0A>", "<s>", "a"], "a\n", True),
        ("\n<s>a", ["a", "<0x0A>", "<s>", "a"], "a", True),
    ],
)
def test_a_stop_string_may_spell_special_tokens_that_are_never_shown(
    stop: str, tokens: list[str], shown: str, found: bool
) -> None:
    text, search, said = Detokenizer(LLAMA), StopStrings((stop,)), ""
    for token in ids_of(*tokens):
        assert not search.found
        special = token in LLAMA.special_tokens.values()
        said += search.mark(LLAMA.spelling(token), text.rest()) if special else search.push(text.push(token))
    said += "" if search.found else search.push(text.rest())
    said += "" if search.found else search.flush()
    assert (said, search.found) == (shown, found)
