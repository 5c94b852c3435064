"""The decoder and its cache: every way to cut a text into passes gives the same logits."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny import export_tiny

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.model import cache as cache_module
from specdec_onnx.runtime.model.decoder import ATTENTION_TILE, Cancelled, Decoder
from specdec_onnx.runtime.model.device import Device

FORMATS = ("fp32", "int8", "int4", "w8a8")
CAPACITY = 96


def open_tiny(folder: Path, **options: int | bool) -> Decoder:
    return Decoder.open(open_model(folder), capacity=int(options.pop("capacity", CAPACITY)), **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {format: export_tiny(root / format, format=format, seed=3) for format in FORMATS}


@pytest.fixture(scope="module")
def decoders(folders: dict[str, Path]) -> dict[str, Decoder]:
    return {format: open_tiny(folder, exact=True) for format, folder in folders.items()}


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 380, count).tolist()


@pytest.mark.parametrize("format", FORMATS)
def test_any_cut_into_passes_gives_the_same_logits(decoders: dict[str, Decoder], format: str) -> None:
    decoder, text = decoders[format], tokens(60)
    decoder.rollback(0)
    whole = decoder.forward(text).copy()
    for width in (1, 2, 3, 5, 8, 16, ATTENTION_TILE, ATTENTION_TILE + 1, 50):
        decoder.rollback(0)
        cut = [decoder.forward(text[at : at + width]).copy() for at in range(0, 60, width)]
        np.testing.assert_array_equal(np.concatenate(cut), whole)


@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("width", [1, 7, 30])
def test_a_cache_that_grows_keeps_every_row(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, kernels: str, width: int
) -> None:
    monkeypatch.setenv("SPECDEC_KERNELS", kernels)
    text = tokens(90)
    whole = open_tiny(folders["int4"], exact=True).forward(text).copy()
    monkeypatch.setattr(cache_module, "STEP", 16)
    decoder = open_tiny(folders["int4"], exact=True)
    before = decoder.cache.nbytes
    cut = [decoder.forward(text[at : at + width]).copy() for at in range(0, 90, width)]
    np.testing.assert_array_equal(np.concatenate(cut), whole)
    assert decoder.cache.nbytes == before * CAPACITY // 16
    decoder.rollback(10)
    np.testing.assert_array_equal(decoder.forward(text[10:40]), whole[10:40])


def test_a_cache_that_cannot_grow_keeps_its_text(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "STEP", 16)
    decoder, text = open_tiny(folders["int4"], exact=True), tokens(40)
    whole = decoder.forward(text[:10]).copy()
    allocate, left = decoder.cache._allocate, iter([1])

    def fail_at_the_second(*args: object) -> object:
        if next(left, None) is None:
            raise MemoryError
        return allocate(*args)

    monkeypatch.setattr(decoder.cache, "_allocate", fail_at_the_second)
    with pytest.raises(SpecdecError, match="not enough memory"):
        decoder.forward(text[10:40])
    assert decoder.length == 10
    monkeypatch.setattr(decoder.cache, "_allocate", allocate)
    assert decoder.forward(text[10:40]).shape[0] == 30
    decoder.rollback(0)
    np.testing.assert_array_equal(decoder.forward(text[:10]), whole)


@settings(max_examples=40, deadline=None)
@given(
    format=st.sampled_from(FORMATS),
    moves=st.lists(st.tuples(st.integers(1, 12), st.floats(0, 1)), max_size=8),
)
def test_any_accepts_and_rejects_equal_a_fresh_forward(
    decoders: dict[str, Decoder], format: str, moves: list[tuple[int, float]]
) -> None:
    decoder, kept = decoders[format], tokens(5)
    decoder.rollback(0)
    decoder.forward(kept)
    for number, (width, share) in enumerate(moves):
        drafted = tokens(width, seed=number + 1)
        if len(kept) + width >= CAPACITY - 6:
            break
        decoder.forward(drafted)
        kept += drafted[: int(share * width)]
        decoder.rollback(len(kept))
    after = decoder.forward([7, 8, 9]).copy()
    decoder.rollback(0)
    np.testing.assert_array_equal(decoder.forward([*kept, 7, 8, 9])[-3:], after)


def test_a_padded_row_never_comes_back(decoders: dict[str, Decoder]) -> None:
    decoder = decoders["fp32"]
    decoder.rollback(0)
    assert decoder.forward([5]).shape == (1, decoder.vocab_size)
    assert decoder.length == 1


@pytest.mark.parametrize("width", [1, 2, 3, 9, ATTENTION_TILE + 1])
def test_keeping_the_last_rows_changes_nothing_in_them(decoders: dict[str, Decoder], width: int) -> None:
    decoder, text = decoders["w8a8"], tokens(width)
    decoder.rollback(0)
    whole = decoder.forward(text).copy()
    for keep in range(1, width + 1):
        decoder.rollback(0)
        np.testing.assert_array_equal(decoder.forward(text, keep=keep), whole[-keep:])


def test_a_full_context_says_how_many_tokens_it_has(folders: dict[str, Path]) -> None:
    decoder = open_tiny(folders["fp32"], capacity=8)
    decoder.forward(tokens(8))
    with pytest.raises(SpecdecError, match="9 tokens, room for 8"):
        decoder.forward([1])
    assert decoder.length == 8


def test_rolling_forward_is_refused(folders: dict[str, Path]) -> None:
    decoder = open_tiny(folders["fp32"])
    decoder.forward([1, 2])
    with pytest.raises(SpecdecError, match="cannot roll"):
        decoder.rollback(3)


def test_a_terminated_pass_leaves_the_cache_as_it_was(folders: dict[str, Path]) -> None:
    decoder = open_tiny(folders["fp32"])
    decoder.forward(tokens(4))
    decoder.terminate()
    with pytest.raises(Cancelled):
        decoder.forward(tokens(3, seed=1))
    assert decoder.length == 4
    decoder.resume()
    again = decoder.forward(tokens(3, seed=1)).copy()
    decoder.rollback(0)
    np.testing.assert_array_equal(decoder.forward([*tokens(4), *tokens(3, seed=1)])[-3:], again)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("env.cc:327 pthread_create failed, error code: 12", "no further thread"),
        ("bfc_arena.cc Failed to allocate memory for requested buffer", "not enough memory"),
        ("no such operator", "cannot load"),
    ],
)
def test_a_graph_that_the_system_has_no_room_for_is_not_called_damaged(
    reason: str, said: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **options: object) -> object:
        raise RuntimeError(f"{reason}\nmore")

    monkeypatch.setattr(Device, "open", fail)
    with pytest.raises(SpecdecError, match=said):
        open_tiny(folders["fp32"])


def test_a_missing_data_file_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    broken = export_tiny(tmp_path / "broken")
    next((broken / "onnx").glob("*data")).unlink()
    with pytest.raises(SpecdecError, match="cannot load"):
        open_tiny(broken)


LEAVING = """
import sys, threading
from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.model.decoder import Decoder

decoder, passed = Decoder.open(open_model(sys.argv[1]), capacity=520), threading.Event()

def work():
    while True:
        decoder.forward([5] * 512, keep=1)
        decoder.rollback(0)
        passed.set()

threading.Thread(target=work, daemon=True).start()
passed.wait()
"""


def test_a_program_may_end_while_a_daemon_thread_computes(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 1024}
    folder = export_tiny(tmp_path / "slow", seed=3, **sizes)
    for _ in range(2):
        left = subprocess.run(
            [sys.executable, "-c", LEAVING, str(folder)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (left.returncode, "terminate" in left.stderr) == (0, False), left.stderr


def test_an_error_that_a_signal_handler_raises_during_a_pass_keeps_its_name(folders: dict[str, Path]) -> None:
    decoder = open_tiny(folders["fp32"])

    def late(*_: object) -> None:
        raise TimeoutError("too late")

    before = signal.signal(signal.SIGTERM, late)
    run = decoder.session.run_with_iobinding
    decoder.session.run_with_iobinding = lambda *args: (run(*args), signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(TimeoutError, match="too late"):
            decoder.forward(tokens(5))
    finally:
        signal.signal(signal.SIGTERM, before)
    decoder.session.run_with_iobinding = run
    decoder.forward(tokens(5))
