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


def test_the_settings_follow_the_family() -> None:
    found = GgufTokenizer("x", entries() | {"general.architecture": "gemma"}, 2000)
    assert found.kind.tokenizer_class == "PreTrainedTokenizerFast"
    assert (found.kind.adds_space, found.adds_bos) == (False, True)
    assert [found.added()[index].special for index in (0, 1, 2, 3)] == [True, True, True, False]


CONTROL = ("<|user|>", "<|end|>", "<end_of_turn>", "<start_of_turn>")


def with_control(kind: int, architecture: str = "llama") -> GgufTokenizer:
    types, scores = (entries()[f"tokenizer.ggml.{key}"] for key in ("token_type", "scores"))
    more = {
        "tokens": [*TOKENS, *CONTROL],
        "token_type": [*types, *[kind] * len(CONTROL)],
        "scores": [*scores, *[0.0] * len(CONTROL)],
    }
    return GgufTokenizer("x.gguf", entries(**more) | {"general.architecture": architecture}, 2000)


@pytest.mark.parametrize("kind", [1, 4])
def test_control_tokens_stored_as_other_types_are_control_tokens(kind: int) -> None:
    stored, right = with_control(kind), with_control(3)
    assert stored.build().to_str() == right.build().to_str()
    user, end, end_of_turn, _ = range(len(TOKENS), len(TOKENS) + len(CONTROL))
    found = stored.build().encode("<|user|>the<|end|>", add_special_tokens=False).ids
    assert found == [user, *reference("the", prefix=True), end]
    assert stored.ends == right.ends == (2, end, end_of_turn)


def test_white_space_after_the_control_tokens_of_phi_3_is_no_text() -> None:
    """Its own tokenizer strips on the right of all but three; GGUF has no place to say so."""
    tokenizer = with_control(3, "phi3").build()
    user, end = (len(TOKENS) + CONTROL.index(text) for text in ("<|user|>", "<|end|>"))
    text = "<|user|>\nthe<|end|>\n<|user|> \n\n the"
    once = reference("the", prefix=True)
    assert tokenizer.encode(text, add_special_tokens=False).ids == [user, *once, end, user, *once]
    kept = tokenizer.encode("<s> the", add_special_tokens=False).ids
    assert kept == [1, *reference(" the", prefix=True)]
    assert with_control(3).build().encode(text, add_special_tokens=False).ids[1] != once[0]


def test_files_that_name_no_bos_and_eos_have_them_where_sentencepiece_has() -> None:
    silent = {key: value for key, value in entries().items() if not key.endswith("_token_id")}
    found = GgufTokenizer("x", silent | {"general.architecture": "llama"}, 2000)
    assert found.ids == {"bos": 1, "eos": 2, "unk": 0}
    assert found.ends == (2,)
    types = [1 if index < 3 else kind for index, kind in enumerate(entries()["tokenizer.ggml.token_type"])]
    assert GgufTokenizer("x", silent | {"tokenizer.ggml.token_type": types}, 2000).ends == ()
    short = {"tokens": ["a"], "token_type": [3], "scores": [0.0]}
    metadata = silent | {f"tokenizer.ggml.{key}": value for key, value in short.items()}
    assert GgufTokenizer("x", metadata, 2000).ids == {"unk": 0}


def test_stored_merges_are_followed_over_the_whole_text() -> None:
    """The kind gemma4: SentencePiece's spelling and bytes, with merges by rank instead of scores."""
    order = sorted(MERGES, key=MERGES.__getitem__)
    stored = [f"{left} {right}" for left, right in order]
    silent = {key: value for key, value in entries().items() if not key.endswith("scores")}
    more = {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": stored}
    tokenizer = GgufTokenizer("x", silent | more, 2000).build()
    tokenizer.encode_special_tokens = True
    for text in texts():
        found = tokenizer.encode(text, add_special_tokens=False).ids
        assert found == ranked(text), text
        assert tokenizer.decode(found) == text.replace("\u2581", " ")
    assert tokenizer.encode("the").ids[0] == 1


def pairs_of(piece: str) -> list[tuple[str, str]]:
    ways = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
    return [(left, right) for left, right in ways if left in SCORES and right in SCORES]


MERGES = {pair: rank for rank, pair in enumerate(pair for piece in PIECES for pair in pairs_of(piece))}
"""Every way to make a piece, in the pieces' order: those of one piece need not follow each other in rank."""


def ranked(text: str) -> list[int]:
    """Merge the pair of lowest rank, leftmost first, to the end; symbols stand apart."""
    cuts = "|".join(sorted(map(re.escape, SYMBOLS), key=len, reverse=True))
    parts = re.split(f"({cuts})", text.replace(" ", "\u2581"))
    return [i for part in parts for i in ([TOKENS.index(part)] if part in SYMBOLS else _ranked(part))]


def _ranked(part: str) -> list[int]:
    pieces = list(part)
    while pairs := [(MERGES[pair], at) for at, pair in enumerate(pairwise(pieces)) if pair in MERGES]:
        at = min(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return [index for piece in pieces for index in ids_of(piece)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"scores": [0.0]}, "1 scores do not match"),
        ({"scores": [float("nan")] * len(TOKENS)}, "scores do not match"),
        ({"scores": None}, "no usable tokenizer.ggml.scores"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces"),
        ({"precompiled_charsmap": [1, 2]}, "precompiled_charsmap"),
    ],
)
def test_what_cannot_be_rebuilt(more: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecdecError, match=r"tokenizer of x\.gguf cannot be rebuilt") as raised:
        built(**more)
    assert said in str(raised.value)
