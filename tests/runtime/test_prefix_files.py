"""A text that one process has read is not read again by the next, and a file is never trusted."""

import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.tiny import export_tiny_pair

from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.engine import Engine, load
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
