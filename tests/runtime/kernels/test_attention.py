"""Attention in ONNX Runtime's sessions: right for every shape, and a row's bits depend on its own text only."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention import Array, Attention, Text, cut
from support.matmulnbits import open_with
from support.tiny import export_tiny

from specdec_onnx.models import graph_file
from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime import kernels as front
from specdec_onnx.runtime.kernels import Kernels, kernels, usable_sets
from specdec_onnx.runtime.machine.footprint import predict
from specdec_onnx.runtime.machine.self_test import settle_padding
from specdec_onnx.runtime.model import decoder as decoder_module
from specdec_onnx.runtime.model.decoder import NO_PADDING, Decoder

SETS = usable_sets()
pytestmark = pytest.mark.skipif(not SETS, reason="the kernel library was not built")

sizes = st.sampled_from([16, 32, 48, 64, 80, 128])
kinds = st.builds(
    Attention,
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    size=sizes,
    rotation=st.sampled_from([4, 6, 8]),
    interleaved=st.booleans(),
    window=st.sampled_from([0, 0, 1, 40, 150]),
    softcap=st.sampled_from([0.0, 0.0, 3.0]),
    sinks=st.booleans(),
    packed=st.booleans(),
    half=st.booleans(),
    half_cache=st.booleans(),
    seed=st.integers(0, 100),
)


def each_set() -> list[Kernels]:
    return [front._kernels(name) for name in SETS]


def opened(ours: Kernels, attention: Attention, threads: int = 2) -> Any:
    session, used = open_with(ours, attention.model(), threads)
    assert used == ours
    return session


def in_passes(text: Text, rows: Sequence[Array], *widths: int) -> Array:
    """The results of passes of these widths, and then of the rest."""
    ends = [*np.cumsum(widths), len(rows[0])]
    return np.concatenate(
        [
            text.read(cut(rows, first, end))
            for first, end in zip([0, *ends], ends, strict=False)
            if first < end
        ]
    )


@settings(max_examples=60, deadline=None)
@given(
    attention=kinds,
    passes=st.lists(st.sampled_from([1, 2, 3, 7, 16, 17, 33, 90, 140]), min_size=1, max_size=4),
)
def test_every_shape_is_right_and_has_the_same_bits_everywhere(
    attention: Attention, passes: list[int]
) -> None:
    rows = attention.rows(sum(passes))
    found = [in_passes(Text(opened(ours, attention), attention), rows, *passes[:-1]) for ours in each_set()]
    bound = 4e-3 if attention.half else 2e-5
    np.testing.assert_allclose(found[0], attention.expected(rows), rtol=bound, atol=bound)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@settings(max_examples=25, deadline=None)
@given(
    attention=kinds, widths=st.lists(st.integers(1, 70), min_size=3, max_size=9), threads=st.integers(1, 3)
)
def test_a_text_may_be_cut_into_any_passes(attention: Attention, widths: list[int], threads: int) -> None:
    rows = attention.rows(sum(widths))
    whole = Text(opened(kernels(), attention, threads), attention)
    one_pass, pieces = whole.read(rows), Text(opened(kernels(), attention), attention)
    np.testing.assert_array_equal(in_passes(pieces, rows, *widths[:-1]), one_pass)
    for one, other in zip(whole.cache, pieces.cache, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shared", [True, False])
def test_each_row_alone_equals_the_row_in_company(shared: bool) -> None:
    attention = Attention(group=6, size=64)
    rows, session = attention.rows(300), opened(kernels(), attention)
    together = in_passes(Text(session, attention, shared=shared), rows, 200, 70)
    alone = Text(session, attention, shared=shared)
    before = alone.read(cut(rows, 0, 230))
    steps = np.concatenate([alone.read(cut(rows, at, at + 1)) for at in range(230, 300)])
    np.testing.assert_array_equal(np.concatenate([before, steps]), together)


@pytest.mark.parametrize("slope", [(1, 1), (0.1, 30), (30, 0.1)])
@pytest.mark.parametrize("window", [0, 530])
def test_a_long_text_is_right_however_it_is_cut_and_wherever_its_scores_are_large(
    window: int, slope: tuple[float, float]
) -> None:
    """It has several spans of 512 keys; with a slope, the first keys outweigh the last ones or the reverse."""
    attention = Attention(window=window, sinks=True, half_cache=True)
    rows = attention.rows(1024)
    rows[1] *= np.geomspace(*slope, 1024, dtype=np.float32)[:, None]
    whole = [Text(opened(ours, attention), attention, 1024).read(rows) for ours in each_set()]
    np.testing.assert_allclose(whole[0], attention.expected(rows), rtol=2e-4, atol=2e-4)
    for other in whole[1:]:
        np.testing.assert_array_equal(other, whole[0])
    text = Text(opened(kernels(), attention), attention, 1024)
    np.testing.assert_array_equal(in_passes(text, rows, 509, 1, 2, 1, 7, 500, 2, 1), whole[0])


def test_what_was_rolled_back_leaves_no_trace() -> None:
    attention = Attention()
    rows, drafts, session = attention.rows(160), attention.rows(8, seed=9), opened(kernels(), attention)
    text = Text(session, attention)
    text.read(cut(rows, 0, 150))
    text.read([part * np.float32(np.inf) for part in drafts])
    text.length = 150
    expected = in_passes(Text(session, attention), rows, 150)[150:]
    np.testing.assert_array_equal(text.read(cut(rows, 150, 160)), expected)


def test_a_row_that_is_no_number_spoils_no_row_before_it() -> None:
    attention = Attention()
    rows, session = attention.rows(140), opened(kernels(), attention)
    spoiled = [part.copy() for part in rows]
    for part in spoiled:
        part[135] = np.nan
    found, expected = (Text(session, attention).read(each) for each in (spoiled, rows))
    np.testing.assert_array_equal(found[:135], expected[:135])
    assert np.isnan(found[135:]).all()


def test_onnx_runtime_computes_the_same() -> None:
    for attention in (
        Attention(size=64),
        Attention(window=50),
        Attention(softcap=4.0),
        Attention(sinks=True),
    ):
        theirs = ort.InferenceSession(attention.model(), providers=["CPUExecutionProvider"])
        rows = attention.rows(200)
        found = [
            in_passes(Text(session, attention), rows, 120, 1, 7)
            for session in (theirs, opened(kernels(), attention))
        ]
        np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_two_sessions_and_threads_do_not_meet() -> None:
    attention = Attention(group=7, size=64)
    sessions = [opened(kernels(), attention), opened(kernels(), attention)]
    rows = attention.rows(400)
    expected, wrong = in_passes(Text(sessions[0], attention), rows, 256), []

    def work(session: Any) -> None:
        found = (in_passes(Text(session, attention), rows, 300, 1, 9) for _ in range(12))
        wrong.extend(session for result in found if not np.array_equal(result, expected))

    threads = [threading.Thread(target=work, args=(session,)) for session in (*sessions, *sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("extra", "more", "why"),
    [
        (["", "bias"], {}, "no bias"),
        ([], {"qk_output": 1}, "one output"),
    ],
)
def test_attention_that_is_not_taken_is_onnx_runtimes(
    extra: list[str], more: dict[str, int], why: str
) -> None:
    _, used = open_with(kernels(), Attention().model(extra, **more))
    assert used.name == kernels().name and why in used.attention and not used.has_attention
    assert f"attention is ONNX Runtime's: attention: {'no bias' if extra else 'only'}" in str(used)


@pytest.mark.parametrize(
    ("size", "rotation", "stated"), [(272, 8, True), (512, 256, True), (512, 256, False)]
)
def test_larger_heads_run_on_onnx_runtime(size: int, rotation: int, stated: bool) -> None:
    attention = Attention(size=size, rotation=rotation)
    session, used = open_with(kernels(), attention.model(stated=stated))
    assert used.name == kernels().name and "only heads of" in used.attention
    rows = attention.rows(9)
    np.testing.assert_allclose(Text(session, attention).read(rows), attention.expected(rows), atol=1e-4)


def test_a_graph_may_leave_the_size_of_a_head_open() -> None:
    attention = Attention(size=64, rotation=32)
    session, used = open_with(kernels(), attention.model(stated=False))
    rows = attention.rows(9)
    assert used.has_attention
    np.testing.assert_array_equal(
        Text(session, attention).read(rows), Text(opened(kernels(), attention), attention).read(rows)
    )


def test_two_models_may_be_opened_at_once_one_of_them_without_our_attention() -> None:
    models = [Attention(), Attention(size=272, rotation=8)]
    with ThreadPoolExecutor(8) as pool:
        used = list(pool.map(lambda each: open_with(kernels(), each.model()), models * 40))
    for (session, found), attention in zip(used, models * 40, strict=True):
        assert found.has_attention == (attention.size == 32)
        if found.has_attention:  # ONNX Runtime's rows would differ in their last bits
            rows = attention.rows(70)
            alone, together = Text(session, attention), Text(session, attention).read(rows)
            np.testing.assert_array_equal(in_passes(alone, rows, *[1] * 69), together)


def test_a_text_that_is_longer_than_its_cache_is_an_error_of_that_run() -> None:
    attention = Attention()
    text = Text(opened(kernels(), attention), attention, capacity=20)
    text.read(attention.rows(20))
    with pytest.raises(Exception, match=r"present_key|shape verification"):
        text.read(attention.rows(1))


def test_where_attention_is_ours_a_step_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(export_tiny(tmp_path / "m", format="int4"))
    decoder = Decoder.open(model, capacity=300, exact=True)
    assert decoder.kernels.has_attention and decoder.padding == NO_PADDING
    assert settle_padding(decoder).bit_identical and decoder.padding == NO_PADDING
    monkeypatch.setenv(front.SETTING, "off")
    assert Decoder.open(model, capacity=300, exact=True).padding != NO_PADDING


def test_where_attention_is_ours_the_cache_is_in_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_model(export_tiny(tmp_path / "m", format="int4", seed=3))
    text = np.random.default_rng(0).integers(0, 380, 40).tolist()
    halved, whole = (Decoder.open(model, capacity=64, half_cache=half) for half in (True, False))
    assert halved.kernels.has_attention and halved.signature.cache_type is np.float16
    assert 2 * halved.cache.nbytes == whole.cache.nbytes
    assert predict(model, 64).cache == halved.cache.nbytes
    assert predict(model, 64, half_cache=False).cache == whole.cache.nbytes
    found, expected = halved.forward(text).copy(), whole.forward(text)
    assert 0 < np.sqrt(np.mean((found - expected) ** 2)) < 0.05 * expected.std()
    monkeypatch.setenv(front.SETTING, "off")
    assert Decoder.open(model, capacity=64).cache.nbytes == whole.cache.nbytes == predict(model, 64).cache


def test_a_rejected_attention_keeps_its_cache(tmp_path: Path) -> None:
    decoder = Decoder.open(open_model(export_tiny(tmp_path / "m", format="int4", head_dim=272)), capacity=64)
    assert "only heads of" in decoder.kernels.attention and decoder.signature.cache_type is np.float32
    assert np.isfinite(decoder.forward([5, 6, 7])).all()


def test_a_graph_with_its_weights_inside_keeps_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_model(export_tiny(tmp_path / "m", format="int4"))
    monkeypatch.setattr(graph_file, "_LARGEST_GRAPH", model.graph.stat().st_size - 1)
    assert Decoder.open(model, capacity=64).signature.cache_type is np.float32


def test_a_graph_without_that_operator_is_padded_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it was rejected, but its attention is not ours either."""
    read = decoder_module.read_signature
    monkeypatch.setattr(
        decoder_module, "read_signature", lambda *args: replace(read(*args), shares_buffer=False)
    )
    model = open_model(export_tiny(tmp_path / "m", format="int4"))
    decoder = Decoder.open(model, capacity=300, exact=True)
    assert decoder.kernels.has_attention and decoder.padding != NO_PADDING
