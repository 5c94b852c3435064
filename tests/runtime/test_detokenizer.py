"""Text comes in whole characters and never from behind a stop string."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_tokenizer import tiny_tokenizer

from specdec_onnx.models.tokenizer import Tokenizer
from specdec_onnx.runtime.detokenizer import Detokenizer, StopStrings

TOKENIZER = Tokenizer(tiny_tokenizer(384))


@given(st.text(max_size=40))
def test_pieces_add_up_to_the_text(text: str) -> None:
    stream = Detokenizer(TOKENIZER)
    pieces = [stream.push(token) for token in TOKENIZER.encode(text, special=False)]
    assert "".join([*pieces, stream.flush()]) == text


def test_half_a_character_is_held_back() -> None:
    stream, parts = Detokenizer(TOKENIZER), TOKENIZER.encode("é漢🙂")
    assert len(parts) == 9
    pieces = [stream.push(token) for token in parts]
    assert [piece for piece in pieces if piece] == ["é", "漢", "🙂"]
    assert [pieces.index(piece) for piece in ("é", "漢", "🙂")] == [1, 4, 8]


def test_an_unfinished_character_is_marked_at_the_end() -> None:
    stream = Detokenizer(TOKENIZER)
    assert stream.push(TOKENIZER.encode("漢")[0]) == ""
    assert stream.flush() == "\N{REPLACEMENT CHARACTER}"


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
