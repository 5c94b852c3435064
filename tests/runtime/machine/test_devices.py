"""Devices by name, padding, passes in pieces, placement by measurement, and memory said beforehand."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny import export_tiny, export_tiny_pair

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.engine import load
from specdec_onnx.runtime.machine import footprint
from specdec_onnx.runtime.machine import loading as placement
from specdec_onnx.runtime.machine import self_test as selftest
from specdec_onnx.runtime.machine.costs import Curve
from specdec_onnx.runtime.machine.footprint import (
    DEFAULT_CONTEXT,
    Footprint,
    check_memory,
    context_limit,
    predict,
)
from specdec_onnx.runtime.machine.profile import Profile
from specdec_onnx.runtime.machine.self_test import Identity, settle_padding, settle_width
from specdec_onnx.runtime.model import device
from specdec_onnx.runtime.model.decoder import (
    EIGHTS,
    EVEN,
    NO_PADDING,
    PADDINGS,
    PAIRS,
    SPARE_ROWS,
    UNLIMITED,
    Cancelled,
    Decoder,
    Padding,
)
from specdec_onnx.runtime.model.device import Device, check_threads, find_device, lacks, usable_devices


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    return Decoder.open(open_model(export_tiny(tmp_path / "tiny", seed=3)), capacity=160, exact=True)


@pytest.mark.parametrize("name", ["gpu", "CPU", ""])
def test_an_unknown_device_is_refused_with_the_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="unknown device"):
        find_device(name)
    with pytest.raises(SpecdecError, match="unknown device") as refusal:
        load(export_tiny(tmp_path / "tiny"), device=name or "none")
    assert "auto" in refusal.value.fix


@pytest.mark.parametrize("name", ["cuda", "dml", "webgpu"])
def test_a_missing_provider_says_what_to_install(name: str) -> None:
    if not lacks(name):
        pytest.skip(f"{name} is installed here")
    with pytest.raises(SpecdecError, match="not available") as refusal:
        find_device(name)
    assert refusal.value.why and "specdec-onnx[" in refusal.value.fix


def test_a_provider_that_does_not_start_is_told_apart_from_a_bad_model(tmp_path: Path) -> None:
    """ONNX Runtime goes on with the CPU in silence when it cannot load the CUDA provider."""
    if not lacks("cuda"):
        pytest.skip("cuda is installed here")
    with pytest.raises(SpecdecError, match="could not be started"), pytest.warns(UserWarning):
        Decoder.open(open_model(export_tiny(tmp_path / "tiny")), device=Device("cuda"), capacity=64)


@given(count=st.integers(1, 300), padding=st.sampled_from(PADDINGS))
def test_padding_is_enough_and_within_the_spare_rows(count: int, padding: Padding) -> None:
    width = padding.width(count)
    assert count <= width < count + SPARE_ROWS
    assert width % padding.multiple == 0
    assert padding.width(width) == width
    if padding == PAIRS:
        assert width % 32 != 1


@pytest.mark.parametrize("padding", [PAIRS, EVEN, EIGHTS])
@pytest.mark.parametrize("widest", [8, 24, UNLIMITED])
def test_padding_and_pieces_change_no_logits(decoder: Decoder, padding: Padding, widest: int) -> None:
    text = np.random.default_rng(0).integers(0, 380, 75).tolist()
    whole = decoder.forward(text).copy()
    decoder.padding, decoder.widest = padding, widest
    for keep in (0, 1, 9, 40, 75):
        decoder.rollback(0)
        np.testing.assert_array_equal(decoder.forward(text, keep=keep), whole[-keep:])
        assert decoder.length == 75


def test_a_stop_between_pieces_leaves_the_cache_as_it_was(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder.widest = 8
    decoder.forward([1, 2, 3])
    run = decoder.session.run_with_iobinding

    def stopped(*args: object) -> None:
        run(*args)
        decoder.terminate()

    monkeypatch.setattr(decoder.session, "run_with_iobinding", stopped)
    with pytest.raises(Cancelled):
        decoder.forward(list(range(20)))
    assert decoder.length == 3


def test_the_self_test_finds_a_kernel_that_is_wrong_in_wide_passes(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Decoder.forward

    def wrong(self: Decoder, tokens: list[int], *, keep: int = 0) -> np.ndarray:
        logits = forward(self, tokens, keep=keep)
        return logits[:, ::-1] if 32 <= len(tokens) <= self.widest else logits

    monkeypatch.setattr(Decoder, "forward", wrong)
    decoder.device = replace(decoder.device, name="webgpu")
    settle_width(decoder)
    assert decoder.widest == 24


def test_the_self_test_takes_the_cheapest_padding_that_is_exact(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    differences = {NO_PADDING: 0.5, PAIRS: 0.25, EVEN: 0.0, EIGHTS: 0.0}
    monkeypatch.setattr(selftest, "check_identity", lambda each: Identity(differences[each.padding]))
    assert settle_padding(decoder).bit_identical
    assert decoder.padding == EVEN
    differences |= {EVEN: 0.3, EIGHTS: 0.1}
    assert settle_padding(decoder) == Identity(0.25)
    assert decoder.padding == PAIRS


def test_directml_refuses_an_attention_it_computes_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(device.PROVIDERS, "dml", "CPUExecutionProvider")
    with pytest.raises(SpecdecError, match="cannot run on device 'dml'"):
        Decoder.open(open_model(export_tiny(tmp_path / "tiny")), device=Device("dml"), capacity=64)


def placed(
    costs: dict[str, float], opened: list[str], known: Mapping[str, float] = MappingProxyType({})
) -> tuple[placement.Placement, Curve]:
    """Where a model goes whose tokens cost so many seconds by device; appends what was opened for it to `opened`."""

    def curve(seconds: float) -> Curve:
        return Curve((1, 2), (seconds, 1.0))

    def opener(where: Device) -> tuple[Decoder, Profile]:
        opened.append(where.name)
        if where.name not in costs:
            raise SpecdecError("no", "it broke")
        return None, Profile(curve(costs[where.name]), Identity(0.0))  # type: ignore[return-value]

    def before(where: Device) -> Curve | None:
        return curve(known[where.name]) if where.name in known else None

    found, _, profile = placement.place("auto", opener, placement.draft_cost, before)
    return found, profile.curve


@pytest.fixture
def three_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "usable_devices", lambda: ["cpu", "cuda", "webgpu"])
    monkeypatch.setattr(placement, "find_device", Device)


@pytest.mark.usefixtures("three_devices")
def test_auto_takes_the_fastest_and_says_what_was_measured() -> None:
    opened: list[str] = []
    place, curve = placed({"cpu": 0.02, "cuda": 0.005}, opened)
    assert (place.device, curve(1)) == ("cuda", 0.005)
    assert opened == ["cpu", "cuda", "webgpu"]
    assert str(place) == "cuda (measured: cpu 20.0 ms, cuda 5.0 ms; not webgpu: it broke)"


@pytest.mark.usefixtures("three_devices")
def test_auto_opens_only_the_fastest_when_all_were_measured_before() -> None:
    opened: list[str] = []
    known = {"cpu": 0.02, "cuda": 0.03, "webgpu": 0.04}
    place, _ = placed({"cpu": 0.5}, opened, known)
    assert (place.device, opened) == ("cpu", ["cpu"])


@pytest.mark.usefixtures("three_devices")
def test_auto_tells_why_when_no_device_works() -> None:
    with pytest.raises(SpecdecError, match="no device") as refusal:
        placed({}, [])
    assert "it broke" in refusal.value.why


def test_a_pair_may_be_placed_by_measurement(tmp_path: Path) -> None:
    engine = load(export_tiny_pair(tmp_path / "pair", seed=5), draft_device="auto", context=200)
    assert engine.placements["target"].device == "cpu"
    assert engine.placements["draft"].milliseconds.keys() == set(usable_devices())
    assert engine.generate("the rain", max_new_tokens=8, mode="draft")


def test_memory_grows_with_the_context_and_counts_the_cache_exactly(tmp_path: Path) -> None:
    model = open_model(export_tiny(tmp_path / "tiny"))
    small, large = (predict(model, rows) for rows in (100, 400))
    decoder = Decoder.open(model, capacity=400)
    assert large.cache == decoder.cache.nbytes == 4 * small.cache
    assert large.weights == small.weights < model.weight_bytes


@pytest.mark.parametrize("format", ["w8a8", "int4", "int8", "fp32"])
def test_the_embedding_table_stays_in_the_file(format: str, tmp_path: Path) -> None:
    model = open_model(export_tiny(tmp_path / "model", format=format))
    graph = onnx.load(model.graph).graph
    parts = [each for each in graph.initializer if each.name in ("embedding.weight", "embedding.scale")]
    table = sum(onnx.numpy_helper.to_array(each).nbytes for each in parts)
    found = predict(model, 64)
    assert (found.weights, found.left_in_file) == (model.weight_bytes - table, table)


@pytest.mark.parametrize("said", ["fp32", "int8", "ready", None])
def test_what_stays_in_the_file_is_read_from_the_graph_not_from_the_formats_name(
    said: str | None, tmp_path: Path
) -> None:
    folder = export_tiny(tmp_path / "model", format="w8a8")
    right = predict(open_model(folder), 64)
    facts = json.loads((folder / "specdec.json").read_text())
    (folder / "specdec.json").write_text(json.dumps({**facts, "format": said, "cache": said}))
    assert predict(open_model(folder), 64) == right
    assert right.left_in_file == 384 * 64 + 384 * 4


def test_a_table_that_is_multiplied_too_does_not_stay_in_the_file(tmp_path: Path) -> None:
    model = open_model(export_tiny(tmp_path / "model"))
    graph = onnx.load(model.graph, load_external_data=False)
    graph.graph.node.append(onnx.helper.make_node("Identity", ["embedding.weight"], ["a copy"]))
    onnx.save(graph, model.graph)
    found = predict(model, 64)
    assert found.left_in_file == 0 and found.weights == model.weight_bytes


def test_what_cannot_fit_is_refused_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "available_memory", lambda: 1_500_000_000)
    check_memory({"target": Footprint(10**9, 10**8, 10**8)}, 512)
    needs = {"target": Footprint(2 * 10**9, 5 * 10**8, 10**8), "draft": Footprint(10**8, 10**7, 10**7)}
    with pytest.raises(SpecdecError, match=r"2\.7 GB needed, 1\.5 GB available") as refusal:
        check_memory(needs, 512)
    assert "cache of 512 tokens 500 MB" in refusal.value.why
    monkeypatch.setattr(footprint, "available_memory", lambda: 10**6)
    with pytest.raises(SpecdecError, match="not enough memory"):
        load(export_tiny(tmp_path / "tiny"))


def test_the_default_context_is_the_models_own_unless_its_cache_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_model(export_tiny(tmp_path / "tiny", max_position_embeddings=40_000))
    most = model.context_length - SPARE_ROWS
    whole = predict(model, most).cache
    for free, expected in (
        (5 * whole, most),
        (5 * whole - 1, most // 2),
        (whole, DEFAULT_CONTEXT),
        (None, DEFAULT_CONTEXT),
    ):
        monkeypatch.setattr(footprint, "available_memory", lambda free=free: free)
        assert context_limit(model, None) == expected
        assert context_limit(model, 30_000) == 30_000


def test_measuring_is_announced_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    folder, said = export_tiny(tmp_path / "model"), []
    first = load(folder, on_measure=lambda: said.append("measuring"))
    again = load(folder, on_measure=lambda: said.append("measuring"))
    assert said == ["measuring"]
    assert again.profile.curve.seconds == first.profile.curve.seconds


@pytest.mark.parametrize("threads", [-1, 4096, 10**30])
def test_more_threads_than_cores_are_refused_before_anything_is_opened(tmp_path: Path, threads: int) -> None:
    with pytest.raises(SpecdecError, match=f"{threads} threads are not possible") as caught:
        load(tmp_path / "nothing", threads=threads)
    assert "core" in caught.value.why and "0 for all physical cores" in caught.value.fix


def test_as_many_threads_as_cores_are_allowed() -> None:
    check_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def test_a_wrong_vocabulary_in_the_config_is_no_lack_of_memory(tmp_path: Path) -> None:
    folder = export_tiny(tmp_path / "model")
    right = predict(open_model(folder), 64)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 10**9}))
    assert predict(open_model(folder), 64) == right


def test_a_context_without_room_for_padding_is_named(tmp_path: Path) -> None:
    folder = export_tiny(tmp_path / "model")
    facts = json.loads((folder / "specdec.json").read_text())
    (folder / "specdec.json").write_text(json.dumps(facts | {"context_length": 5}))
    for requested in (None, 100):
        with pytest.raises(SpecdecError, match="has a context of 5 tokens"):
            context_limit(open_model(folder), requested)
