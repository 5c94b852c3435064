"""A text that one process has read is not read again by the next, and a file is never trusted."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.tiny import export_tiny_pair

from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.chat import same_text
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.model import prefix_files
from specdec_onnx.runtime.model.decoder import Decoder, Tape
from specdec_onnx.runtime.model.prefix_files import WORTHWHILE, PrefixFiles

SIZES: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1, "max_position_embeddings": 2048}
PROMPT = "the rain in Spain stays mainly in the plain. " * 20


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny_pair(tmp_path_factory.mktemp("files") / "pair", seed=5, target_sizes=SIZES)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "prefixes"


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 380, count).tolist()


def tape(pair: Path, store: Path, fingerprint: str = "model") -> Tape:
    found = Tape(Decoder.open(open_model(pair / "target"), capacity=1200, exact=True))
    found.keep_on_disk(store, fingerprint)
    return found


def read(tape: Tape, text: Sequence[int]) -> NDArray[np.float32]:
    """The logits after `text`."""
    return tape.forward(text[tape.turn_to(text[:-1]) :])[-1].copy()


def files(store: Path) -> list[Path]:
    return sorted(store.glob("*.safetensors"))


def test_a_later_process_does_not_read_the_text_again(pair: Path, store: Path) -> None:
    first = load(pair, prefix_folder=store)
    expected = first.generate(PROMPT, max_new_tokens=20)
    first.store_text()
    later = load(pair, prefix_folder=store)
    assert later.generate(PROMPT, max_new_tokens=20) == expected
    statistics = later.last.statistics
    assert statistics.cached_prompt_tokens == statistics.prompt_tokens - 1 > WORTHWHILE
    draft = later.speculation.draft
    assert draft is not None and len(files(store)) == 2


def test_a_conversation_continues_in_a_later_process(pair: Path, store: Path) -> None:
    chat = load(pair, prefix_folder=store).chat()
    list(chat.send(PROMPT, max_new_tokens=20))
    chat._engine.store_text()
    messages = [*chat.messages, {"role": "user", "content": "and then?"}]
    expected = "".join(step.text for step in chat.answer(messages, max_new_tokens=20))
    again = load(pair, prefix_folder=store).chat()
    found = again.answer(messages, max_new_tokens=20)
    assert "".join(step.text for step in found) == expected
    assert found.result.statistics.cached_prompt_tokens > WORTHWHILE


def test_an_answer_that_its_text_spells_differently_is_not_read_again_either(pair: Path, store: Path) -> None:
    """A model may write tokens that its text is not encoded to: here, the answer letter by letter."""
    engine = load(pair, prefix_folder=store)
    chat, letters = engine.chat(), list[int]()
    list(chat.send(PROMPT, max_new_tokens=1))
    message = "the rain in Spain " * 20
    for letter in message:
        letters += engine.tokenizer.encode(letter)
    assert engine.tokenizer.decode(letters) == message and len(engine.tokenizer.encode(message)) < len(
        letters
    )
    prompt = [*engine.last.prompt, *letters]
    engine.generate(prompt, max_new_tokens=1)
    engine.store_text()
    messages = [
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "content": message},
        {"role": "user", "content": "and then?"},
    ]
    again = load(pair, prefix_folder=store)
    found = again.chat().answer(messages, max_new_tokens=4)
    list(found)
    assert found.result.prompt[: len(prompt)] == prompt
    assert found.result.statistics.cached_prompt_tokens == len(prompt)
    alone = load(pair).chat().answer(messages, max_new_tokens=4)
    list(alone)
    texts = (engine.tokenizer.decode(each.result.prompt, skip_special=False) for each in (found, alone))
    assert len(set(texts)) == 1


WORDS = ("a", "b", "ab", "ba", "aba", "bb", "<end>", "c")
"""Spellings of ids; texts of the first six can be split in several ways."""


@settings(max_examples=300, deadline=None)
@given(first=st.lists(st.integers(0, 7), max_size=12), second=st.lists(st.integers(0, 7), max_size=12))
def test_tokens_of_the_same_text_are_found_and_control_tokens_stay_themselves(
    first: list[int], second: list[int]
) -> None:
    own, kept = same_text(first, second, WORDS.__getitem__, {6})
    assert kept == second[: len(kept)]
    assert "".join(WORDS[token] for token in first[:own]) == "".join(WORDS[token] for token in kept)
    assert [token for token in first[:own] if token == 6] == [token for token in kept if token == 6]
    shared = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    assert own >= (min(len(first), len(second)) if shared is None else shared)


def test_a_text_is_recognised_in_other_tokens() -> None:
    assert same_text([2, 0, 6, 7], [0, 1, 0, 6, 7], WORDS.__getitem__, {6}) == (4, [0, 1, 0, 6, 7])
    assert same_text([2, 6, 7], [0, 1, 6], WORDS.__getitem__, {6}) == (2, [0, 1, 6])
    assert same_text([4, 7], [0, 1, 6], WORDS.__getitem__, {6}) == (0, [])


def test_a_text_is_given_up_half_written_when_there_is_something_better_to_do(
    pair: Path, store: Path
) -> None:
    first = tape(pair, store)
    read(first, tokens(300))
    for calls in (0, 1, 7, 8):
        left = iter([False] * calls)
        first.store(until=lambda left=left: next(left, True))  # type: ignore[misc]
        assert not list(store.iterdir())
    first.store(until=lambda: False)
    assert len(files(store)) == 1


def test_a_full_disk_is_not_filled_further(pair: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tape(pair, store)
    read(first, tokens(300))
    size = 300 * first.decoder.cache.row_bytes
    for free, count in ((3 * size, 0), (5 * size, 1)):
        status = SimpleNamespace(total=10 * size, used=0, free=free)
        monkeypatch.setattr(prefix_files, "disk_usage", lambda folder, status=status: status)
        first.store()
        assert len(files(store)) == count


@pytest.mark.skipif(os.name == "nt", reason="Windows kills in another way")
def test_a_process_that_is_killed_while_it_writes_leaves_no_file_that_counts(pair: Path, store: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from specdec_onnx.runtime.engine import load
engine = load({str(pair)!r}, prefix_folder={str(store)!r})
engine.generate({PROMPT!r}, max_new_tokens=4)
calls = iter(range(9))
engine.store_text(until=lambda: next(calls) == 8 and os.kill(os.getpid(), signal.SIGKILL))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    left = list(store.iterdir())
    assert len(left) == 1 and not files(store)
    os.utime(left[0], (1000, 1000))
    engine = load(pair, prefix_folder=store)
    engine.generate(PROMPT, max_new_tokens=4)
    assert engine.last.statistics.cached_prompt_tokens == 0
    engine.store_text()
    assert left[0] not in store.iterdir() and len(files(store)) == 2


def test_two_processes_may_store_and_delete_at_once(pair: Path, store: Path) -> None:
    """Their texts are beginnings of each other's, and there is room for two files."""
    tapes = [tape(pair, store) for _ in range(3)]
    for each in tapes:
        assert each.files is not None
        each.files = PrefixFiles(store, each.files.identity, budget=1200 * each.decoder.cache.row_bytes)

    def work(number: int) -> None:
        for length in (300, 600, 1000, 300) * 5:
            text = tokens(1000, seed=number % 2)[:length]
            each, fresh = tapes[number], length % 7 == number
            if fresh:
                each.cut(0)
            assert each.turn_to(text) <= length and each.tokens == text[: len(each.tokens)]
            each.forward(text[len(each.tokens) :], keep=1)
            each.store()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(3)))
    for file in files(store):
        assert file.stat().st_size <= 1300 * tapes[0].decoder.cache.row_bytes
    for number in range(2):
        found = tape(pair, store)
        known = found.turn_to(tokens(1000, number))
        rows = [found.decoder.cache.rows(name, 0, known).copy() for name in found.decoder.cache.names]
        found.cut(0)
        if known:
            found.forward(tokens(1000, number)[:known], keep=1)
            for name, each in zip(found.decoder.cache.names, rows, strict=True):
                np.testing.assert_array_equal(found.decoder.cache.rows(name, 0, known), each)


def test_restored_rows_are_the_bits_that_were_stored(pair: Path, store: Path) -> None:
    text = tokens(500)
    first = tape(pair, store)
    expected = read(first, text)
    first.store()
    later = tape(pair, store)
    assert later.turn_to(text) == 500
    later.cut(499)
    np.testing.assert_array_equal(read(later, text), expected)
    branch = [*text[:400], *tokens(50, seed=1)]
    fresh = tape(pair, store.with_name("none"))
    np.testing.assert_array_equal(read(tape(pair, store), branch), read(fresh, branch))


def test_only_the_wanted_part_is_stored(pair: Path, store: Path) -> None:
    first = tape(pair, store)
    read(first, tokens(500))
    first.store(300)
    assert tape(pair, store).turn_to(tokens(500)) == 300


def test_a_short_text_is_not_stored(pair: Path, store: Path) -> None:
    first = tape(pair, store)
    read(first, tokens(WORTHWHILE - 1))
    first.store()
    assert not files(store)


def test_a_text_that_has_grown_replaces_its_beginning(pair: Path, store: Path) -> None:
    first = tape(pair, store)
    for length in (300, 600, 550):
        read(first, tokens(600)[:length])
        first.store()
    assert len(files(store)) == 1
    assert tape(pair, store).turn_to(tokens(600)) == 600


def test_a_text_is_written_again_only_when_much_of_it_is_new(pair: Path, store: Path) -> None:
    first = tape(pair, store)
    for length in (300, 500, 300 + WORTHWHILE):
        read(first, tokens(600)[:length])
        first.store()
        assert tape(pair, store).turn_to(tokens(600)) == (556 if length == 556 else 300)


def test_files_are_looked_for_only_when_much_is_to_be_read(
    pair: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tape(pair, store)
    assert first.files is not None
    looked: list[int] = []
    monkeypatch.setattr(PrefixFiles, "_all", lambda self: looked.append(1) or iter(()))
    text = tokens(600)
    for length in (WORTHWHILE, 10 + WORTHWHILE, 300, 320):
        read(first, text[:length])
    assert not looked
    first.turn_to(text)
    assert looked


def test_the_files_of_another_model_are_not_used(pair: Path, store: Path) -> None:
    first = tape(pair, store)
    read(first, tokens(500))
    first.store()
    assert tape(pair, store, "another").turn_to(tokens(500)) == 0


@settings(max_examples=60, deadline=None)
@given(where=st.floats(0, 1), change=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_file_is_never_wrong(
    damaged: tuple[Tape, Path], where: float, change: int, cut: bool
) -> None:
    later, file = damaged
    whole = file.read_bytes()
    at = min(int(where * len(whole)), len(whole) - 1)
    broken = whole[:at] if cut else bytes([*whole[:at], whole[at] ^ change]) + whole[at + 1 :]
    file.write_bytes(broken)
    try:
        later.cut(0)
        known = later.turn_to(tokens(400))
        assert file.exists() or not known, "what is damaged is deleted, so that it can be stored again"
        assert later.tokens == tokens(400)[:known] and later.decoder.length == known
        found = [later.decoder.cache.rows(name, 0, known).copy() for name in later.decoder.cache.names]
        later.cut(0)
        if known:
            later.forward(tokens(400)[:known], keep=1)
            for name, rows in zip(later.decoder.cache.names, found, strict=True):
                np.testing.assert_array_equal(later.decoder.cache.rows(name, 0, known), rows)
    finally:
        file.write_bytes(whole)


@pytest.fixture(scope="module")
def damaged(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tape, Path]:
    store = tmp_path_factory.mktemp("damaged")
    first = tape(pair, store)
    read(first, tokens(400))
    first.store()
    return tape(pair, store), files(store)[0]


def test_the_text_that_was_used_least_recently_goes_first(pair: Path, store: Path) -> None:
    first = tape(pair, store)
    assert first.files is not None
    for seed in range(2):
        read(first, tokens(300, seed))
        first.store()
    for file in files(store):
        os.utime(file, (1000, 1000))
    assert tape(pair, store).turn_to(tokens(300, 0)) == 300
    first.files = PrefixFiles(store, first.files.identity, budget=2 * files(store)[0].stat().st_size)
    read(first, tokens(300, 2))
    first.store()
    assert [tape(pair, store).turn_to(tokens(300, seed)) for seed in range(3)] == [300, 0, 300]


def test_what_a_killed_process_left_is_deleted(pair: Path, store: Path) -> None:
    store.mkdir()
    old, new = (store / f".x-{name}.safetensors.7.partial" for name in ("old", "new"))
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    first = tape(pair, store)
    read(first, tokens(300))
    first.store()
    assert new.exists() and not old.exists() and len(files(store)) == 1


def test_a_folder_that_cannot_be_written_only_costs_the_time(pair: Path, store: Path) -> None:
    store.write_text("a file")
    engine: Engine = load(pair, prefix_folder=store)
    engine.generate(PROMPT, max_new_tokens=4)
    engine.store_text()
    assert store.read_text() == "a file"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_its_owner_can_read_a_file(pair: Path, store: Path) -> None:
    first = tape(pair, store)
    read(first, tokens(300))
    first.store()
    assert stat.S_IMODE(files(store)[0].stat().st_mode) == 0o600
