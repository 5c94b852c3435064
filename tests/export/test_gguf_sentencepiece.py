"""SentencePiece vocabularies in GGUF metadata encode as SentencePiece's own algorithm, written out plainly here."""

import random
import re
from itertools import pairwise
from typing import Any

import pytest
from support.mixed_text import MIXED, random_texts
from tokenizers import Tokenizer

from specdec_onnx.export.checkpoint.gguf_tokenizer import GgufTokenizer
from specdec_onnx.models.errors import SpecdecError

SYMBOLS = ("<ud>", "<tool>", "xyz", "\u2581\u2581\u2581", "\n\n")
BEFORE = ("<unk>", "<s>", "</s>", *SYMBOLS, *(f"<0x{byte:02X}>" for byte in range(256)))
LETTERS = [*"\u2581etaoinshrdlucmfwypvbgkxz<>=()_.,:019", "\n", "é", "中"]
PARTS = [*LETTERS[1:], *SYMBOLS, " ", "  ", " the", "a" * 9, "tata", "🙂", "ß", "\u2581", "self.", "</s>"]


def learnt(count: int) -> list[str]:
    """Pieces as training makes them: each new one joins two known ones."""
    chance, pieces = random.Random(5), list(LETTERS)
    while len(pieces) < count:
        made = "".join(chance.choices(pieces[:60], k=2))
        if len(made) < 9 and made not in pieces and made not in SYMBOLS:
            pieces.append(made)
    return pieces


PIECES = learnt(700)
SCORES = {piece: -float(rank) for rank, piece in enumerate(PIECES)}
TOKENS = [*BEFORE, *PIECES]


def entries(**more: Any) -> dict[str, Any]:
    found = {
        "model": "llama",
        "tokens": TOKENS,
        "token_type": [2, 3, 3, *[4] * len(SYMBOLS), *[6] * 256, *[1] * len(PIECES)],
        "scores": [*[0.0] * len(BEFORE), *SCORES.values()],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (found | more).items()}


def built(architecture: str = "llama", **more: Any) -> Tokenizer:
    metadata = entries(**more) | {"general.architecture": architecture}
    return Tokenizer.from_str(GgufTokenizer("x.gguf", metadata, 2000).build().to_str())


def reference(text: str, *, prefix: bool) -> list[int]:
    """SentencePiece: cut out the symbols, then merge the best-scoring neighbours, leftmost first, to the end."""
    text = (("\u2581" if prefix and text else "") + text).replace(" ", "\u2581")
    cuts = sorted(map(re.escape, SYMBOLS), key=len, reverse=True)
    parts = re.split(f"({'|'.join(cuts)})", text)
    return [index for part in parts for index in ([TOKENS.index(part)] if part in SYMBOLS else merged(part))]


def merged(part: str) -> list[int]:
    pieces = list(part)
    while pairs := [(SCORES[a + b], -at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in SCORES]:
        at = -max(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return [index for piece in pieces for index in ids_of(piece)]


def ids_of(piece: str) -> list[int]:
    if piece in SCORES:
        return [TOKENS.index(piece)]
    return [TOKENS.index(f"<0x{byte:02X}>") for byte in piece.encode()]


def texts() -> list[str]:
    chance = random.Random(8)
    mixed = ["".join(chance.choices(PARTS, k=chance.randint(2, 25))) for _ in range(600)]
    return [*MIXED, *random_texts(300), *mixed]


@pytest.mark.parametrize("prefix", [True, False])
def test_ids_and_text_are_sentencepieces(prefix: bool) -> None:
    tokenizer = built(add_space_prefix=prefix)
    tokenizer.encode_special_tokens = True  # SentencePiece finds no control tokens in text
    for text in texts():
        found = tokenizer.encode(text, add_special_tokens=False).ids
        if text not in SYMBOLS:
            assert found == reference(text, prefix=prefix), text
        assert tokenizer.decode(found) == text.replace("\u2581", " ")


def test_symbols_stored_with_spaces_and_beside_scores() -> None:
    """As converters write Gemma's."""
    tokens = [token.replace("\u2581", " ") if token in SYMBOLS else token for token in TOKENS]
    scores = [-1000.0 if token in SYMBOLS else SCORES.get(token, 0.0) for token in TOKENS]
    tokenizer = built("gemma3", tokens=tokens, scores=scores)
    tokenizer.encode_special_tokens = True
    for text in texts():
        assert tokenizer.encode(text, add_special_tokens=False).ids == reference(text, prefix=False), text


def test_a_space_goes_first_unless_the_file_or_the_family_says_otherwise() -> None:
    spaced, plain = reference("the", prefix=True), reference("the", prefix=False)
    assert spaced != plain
    assert built().encode("the").ids == [1, *spaced]
    assert built("gemma2").encode("the").ids == [1, *plain]
    assert built("gemma2", add_space_prefix=True).encode("the").ids == [1, *spaced]
    assert built(add_bos_token=False).encode("the").ids == spaced
    assert built().encode("", add_special_tokens=False).ids == []


def test_control_tokens_divide_the_text() -> None:
    once = reference("the", prefix=True)
    assert built().encode("the</s>the").ids == [1, *once, 2, *once]
    assert built().decode([1, *once, 2]) == "the"


def test_tokens_added_beside_the_model_divide_the_text_too() -> None:
    tokenizer = built(scores=[-1000.0] * len(BEFORE) + [*SCORES.values()])
    once, symbol = reference("the", prefix=True), TOKENS.index("<tool>")
    assert tokenizer.encode("<tool>the", add_special_tokens=False).ids == [symbol, *once]


def test_bytes_spelled_in_text_stay_text() -> None:
    assert TOKENS.index("<0x0A>") not in built().encode("<0x0A>").ids


def test_without_bytes_what_is_unknown_is_one_unknown_token() -> None:
    types = [5 if kind == 6 else kind for kind in entries()["tokenizer.ggml.token_type"]]
    found = built(token_type=types).encode("e🙂ße", add_special_tokens=False).ids
    assert found == [*reference("e", prefix=True), 0, TOKENS.index("e")]


def test_the_facts_beside() -> None:
    facts = GgufTokenizer("x", entries() | {"general.architecture": "gemma"}, 2000).facts()
    assert facts.tokenizer_class == "PreTrainedTokenizerFast"
    assert (facts.adds_space, facts.adds_bos) == (False, True)
    assert [facts.added[index].special for index in (0, 1, 2, 3)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"scores": [0.0]}, "1 scores do not fit"),
        ({"scores": [float("nan")] * len(TOKENS)}, "scores do not fit"),
        ({"scores": None}, "no usable tokenizer.ggml.scores"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces"),
        ({"precompiled_charsmap": [1, 2]}, "precompiled_charsmap"),
    ],
)
def test_what_cannot_be_rebuilt(more: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecdecError, match=r"tokenizer of x\.gguf cannot be rebuilt") as raised:
        built(**more)
    assert said in str(raised.value)
