"""What another text displaces from the caches is set aside, within a budget, and comes back bit for bit."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.tiny import export_tiny_pair

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.model.decoder import Decoder, Tape
from specdec_onnx.runtime.model.prefixes import BLOCK, Prefixes

SIZES: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1, "max_position_embeddings": 2048}
A, B = "the rain in Spain " * 12, "a quick brown fox jumps " * 12
"""Texts of some 175 tokens."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny_pair(tmp_path_factory.mktemp("prefixes") / "pair", seed=5, target_sizes=SIZES)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load(folder)


@pytest.fixture(scope="module")
def forgetful(folder: Path) -> Engine:
    return load(folder, prefix_memory=0)


@pytest.fixture(autouse=True)
def empty(engine: Engine) -> None:
    engine.forget()


class Count:
    """How many tokens a decoder has read."""

    def __init__(self, decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens, self._forward = 0, decoder.forward
        monkeypatch.setattr(decoder, "forward", self.forward)

    def forward(self, tokens: Sequence[int], *, keep: int = 0) -> NDArray[Any]:
        self.tokens += len(tokens)
        return self._forward(tokens, keep=keep)


@pytest.fixture
def read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Count:
    return Count(engine.target, monkeypatch)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 380, count).tolist()


def rows(tape: Tape) -> list[NDArray[Any]]:
    cache = tape.decoder.cache
    return [cache.rows(name, 0, len(tape.tokens)).copy() for name in cache.names]


def test_two_alternating_conversations_do_not_read_their_texts_again(engine: Engine, read: Count) -> None:
    first, second = engine.chat(A), engine.chat(B)
    for turn in range(4):
        for chat in (first, second):
            before = read.tokens
            list(chat.send(f"{turn}", max_new_tokens=8, mode="plain"))
            assert turn == 0 or read.tokens - before < 60


def test_without_memory_for_them_they_do(forgetful: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Count(forgetful.target, monkeypatch)
    for prompt in (A, B, A):
        before = read.tokens
        forgetful.generate(prompt, max_new_tokens=4, mode="plain")
        assert read.tokens - before > 150


def test_the_draft_model_does_not_read_them_again_either(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = engine.speculation.draft
    assert draft is not None
    for prompt in (A, B):
        engine.generate(prompt, max_new_tokens=4, mode="draft")
    read = Count(draft.tape.decoder, monkeypatch)
    engine.generate(A, max_new_tokens=4, mode="draft")
    assert read.tokens < 60


def test_a_resting_draft_model_does_not_lose_the_text_it_holds(engine: Engine) -> None:
    draft = engine.speculation.draft
    assert draft is not None
    engine.generate(A, max_new_tokens=4, mode="draft")
    held = list(draft.tape.tokens)
    engine.generate(B, max_new_tokens=4, mode="plain")
    assert draft.tape.turn_to(held) == len(held)


def test_the_statistics_count_what_came_back_as_cached(engine: Engine) -> None:
    for prompt in (A, B, A):
        engine.generate(prompt, max_new_tokens=4)
    statistics = engine.last.statistics
    assert statistics.cached_prompt_tokens == statistics.prompt_tokens - 1


def asks() -> Iterator[tuple[str, str]]:
    for number in range(12):
        yield (A, B, A + B, A[:100])[number % 4] + "?" * (number // 4), ("auto", "draft", "plain")[number % 3]


def test_answers_are_the_same_with_and_without_it(engine: Engine, forgetful: Engine) -> None:
    for prompt, mode in asks():
        for sampled in ({}, {"temperature": 1.0, "seed": 3}):
            options: dict[str, Any] = {"mode": mode, "max_new_tokens": 12, **sampled}
            told = engine.generate(prompt, **options)
            forgetful.forget()
            assert told == forgetful.generate(prompt, **options)


@pytest.fixture(scope="module")
def tape(folder: Path) -> Tape:
    return Tape(Decoder.open(open_model(folder / "target"), capacity=1200, exact=True))


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 600), st.integers(1, 400)), min_size=2, max_size=9
    ),
    budget=st.sampled_from([1, 40, 200, 500, 5000]),
)
def test_what_comes_back_is_what_a_fresh_pass_computes(
    tape: Tape, texts: list[tuple[int, int, int]], budget: int
) -> None:
    """Branches of three texts, in any order, with room for very few or all of their rows."""
    cache = tape.decoder.cache
    tape.prefixes = Prefixes(budget * cache.row_bytes)
    tape.cut(0)
    for number, (seed, branch, more) in enumerate(texts):
        text = [*tokens(600, seed)[:branch], *tokens(more, 10 + number % 3)]
        known = tape.turn_to(text)
        tape.forward(text[known:], keep=1)
        assert tape.tokens == text and tape.decoder.length == len(text)
        assert tape.prefixes.nbytes <= tape.prefixes.budget
        assert tape.prefixes.nbytes == held(tape.prefixes)
        found = rows(tape)
        fresh = Tape(tape.decoder)
        tape.decoder.rollback(0)
        fresh.forward(text, keep=1)
        for one, other in zip(found, rows(fresh), strict=True):
            np.testing.assert_array_equal(one, other)


def held(prefixes: Prefixes) -> int:
    """The bytes of all rows that are set aside."""
    total, pending = 0, [prefixes._root]
    while pending:
        block = pending.pop()
        pending += block.children
        total += sum(each.nbytes for each in (block.rows or {}).values())
    return total


def test_branches_share_what_they_have_in_common(tape: Tape) -> None:
    cache, trunk = tape.decoder.cache, tokens(4 * BLOCK)
    tape.prefixes = Prefixes(1 << 30)
    tape.cut(0)
    for branch in range(5):
        text = [*trunk, *tokens(100, seed=branch + 1)]
        tape.forward(text[tape.turn_to(text) :], keep=1)
    tape.turn_to(tokens(10, seed=9))
    assert tape.prefixes.nbytes == (len(trunk) + 5 * 100) * cache.row_bytes


def test_rows_that_stay_in_the_cache_are_not_copied(tape: Tape) -> None:
    tape.prefixes = Prefixes(1 << 30)
    tape.cut(0)
    tape.forward([*tokens(5 * BLOCK), *tokens(100, seed=1)], keep=1)
    tape.turn_to([*tokens(5 * BLOCK), *tokens(100, seed=2)])
    assert tape.prefixes.nbytes == 100 * tape.decoder.cache.row_bytes


def test_a_text_that_has_grown_replaces_what_was_set_aside_of_it(tape: Tape) -> None:
    text, other = tokens(300), tokens(40, seed=1)
    tape.prefixes = Prefixes(1 << 30)
    tape.cut(0)
    for length in (100, 150, 290, 300):
        tape.forward(text[tape.turn_to(text[:length]) : length], keep=1)
        tape.forward(other[tape.turn_to(other) :], keep=1)
    assert tape.prefixes.nbytes == (300 + 40) * tape.decoder.cache.row_bytes


def test_the_text_that_was_used_least_recently_goes_first(tape: Tape) -> None:
    texts = [tokens(200, seed) for seed in range(4)]
    tape.prefixes = Prefixes(3 * 200 * tape.decoder.cache.row_bytes)
    tape.cut(0)
    for number in (0, 1, 2, 0, 3, 2, 3):
        tape.forward(texts[number][tape.turn_to(texts[number]) :], keep=1)
    assert [tape.turn_to(texts[number]) == 200 for number in (0, 2, 1)] == [True, True, False]


def test_forgetting_forgets_what_was_set_aside(engine: Engine, read: Count) -> None:
    for prompt in (A, B):
        engine.generate(prompt, max_new_tokens=4, mode="plain")
    engine.forget()
    before = read.tokens
    engine.generate(A, max_new_tokens=4, mode="plain")
    assert read.tokens - before > 150


def test_a_negative_budget_is_refused(folder: Path) -> None:
    with pytest.raises(SpecdecError, match="prefix_memory is -1"):
        load(folder, prefix_memory=-1)
