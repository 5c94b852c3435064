"""The operator in ONNX Runtime's sessions: right for every shape, the same bits whatever the processor and the company."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.matmulnbits import Product, gated_model_of, model_of, open_with, run, save_outside

from specdec_onnx.models.graph_fusion import with_gated_products
from specdec_onnx.runtime import kernels as front
from specdec_onnx.runtime.kernels import Kernels, kernels, usable_sets

SETS = usable_sets()
pytestmark = pytest.mark.skipif(not SETS, reason="the kernel library was not built")

products = st.builds(
    Product,
    columns=st.integers(1, 80),
    inner=st.integers(1, 600),
    bits=st.sampled_from([4, 8]),
    block=st.sampled_from([16, 32, 64, 128, 256]),
    zeros=st.sampled_from([None, "packed", "float", "parts"]),
    bias=st.booleans(),
    half=st.booleans(),
    seed=st.integers(0, 1000),
)


@pytest.fixture(params=SETS)
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The kernels of one instruction set after the other."""
    monkeypatch.setenv(front.SETTING, request.param)
    return kernels()


def each_set() -> list[Kernels]:
    return [front._kernels(name) for name in SETS]


@settings(max_examples=150, deadline=None)
@given(product=products, rows=st.integers(1, 20))
def test_every_shape_is_within_the_bound_and_has_the_same_bits_everywhere(
    product: Product, rows: int
) -> None:
    x = product.rows(rows)
    found = []
    for ours in each_set():
        session, used = open_with(ours, model_of(product))
        assert used.name == ours.name
        found.append(run(session, x))
    exact, bound = product.expected(x)
    assert (np.abs(found[0] - exact) <= bound).all()
    for other in found[1:]:
        assert np.array_equal(other, found[0])


@settings(max_examples=60, deadline=None)
@given(product=products, strips=st.integers(1, 3), rows=st.integers(1, 20))
def test_a_gate_passes_what_the_product_says(product: Product, strips: int, rows: int) -> None:
    product = replace(product, columns=64 * strips)
    fused = with_gated_products(gated_model_of(product))
    assert fused is not None
    x, found = product.rows(rows), []
    for ours in each_set():
        session, used = open_with(ours, fused)
        assert used.name == ours.name
        found.append(run(session, x))
        assert np.array_equal(run(session, x[-1:]), found[-1][-1:])
    gate, value = np.split(
        run(open_with(each_set()[0], model_of(product))[0], x).astype(np.float64), 2, axis=1
    )
    expected = gate / (1 + np.exp(-gate)) * value
    slack = np.abs(expected) + np.abs(gate) + np.abs(value) + 1
    assert (np.abs(found[0] - expected) <= slack * (0.02 if product.half else 1e-5)).all()
    for other in found[1:]:
        assert np.array_equal(other, found[0])


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_alone_equals_the_row_in_company(forced: Kernels, bits: int) -> None:
    product = Product(70, 160, bits, 32, "packed", bias=True)
    session, _ = open_with(forced, model_of(product))
    x = product.rows(70)
    alone = np.concatenate([run(session, row[None]) for row in x])
    for rows in range(1, 71):
        assert np.array_equal(run(session, x[:rows]), alone[:rows])


def test_threads_change_no_bit(forced: Kernels) -> None:
    product = Product(1500, 512)
    x = product.rows(40)
    one, two = (run(open_with(forced, model_of(product), threads)[0], x) for threads in (1, 2))
    assert np.array_equal(one, two)


def test_batches_are_rows(forced: Kernels) -> None:
    product = Product(40, 96)
    session, _ = open_with(forced, model_of(product))
    x = product.rows(6)
    batched = session.run(None, {"x": x.reshape(3, 2, 96)})[0]
    assert batched.shape == (3, 2, 40)
    assert np.array_equal(batched.reshape(6, 40), run(session, x))
    assert session.run(None, {"x": x[:0].reshape(1, 0, 96)})[0].shape == (1, 0, 40)


@pytest.mark.parametrize("zeros", [None, "packed"])
def test_scales_and_zero_points_in_one_dimension(forced: Kernels, zeros: str | None) -> None:
    """As the builder of ONNX Runtime GenAI writes them."""
    product = Product(40, 96, zeros=zeros)
    flat = {
        name: array.reshape(-1) if name != "weights" else array for name, array in product.stored().items()
    }
    session, used = open_with(forced, model_of(product, flat))
    assert used.name == forced.name
    x = product.rows(5)
    assert np.array_equal(run(session, x), run(open_with(forced, model_of(product))[0], x))


def test_a_missing_zero_point_is_the_middle(forced: Kernels) -> None:
    product = Product(40, 96)
    middle = {"zeros": np.full((40, 2), 0x88, np.uint8)}
    x = product.rows(5)
    found = [
        run(open_with(forced, model_of(product, stored))[0], x)
        for stored in (product.stored(), product.stored() | middle)
    ]
    assert np.array_equal(*found)


@pytest.mark.parametrize("spoiler", [0.3, 16.0, -0.0625, 1 + 2.0**-20])
@pytest.mark.parametrize("half", [False, True])
def test_zero_points_in_bytes_give_the_same_bits(forced: Kernels, half: bool, spoiler: float) -> None:
    """One that is no sixteenth of a level keeps all of them from being stored in bytes."""
    product = Product(40, 96, zeros="parts", half=half)
    stored = product.stored()
    other = {name: array.copy() for name, array in stored.items()}
    other["zeros"][7, 1] = spoiler
    x = product.rows(5)
    in_bytes, wider = (run(open_with(forced, model_of(product, each))[0], x) for each in (stored, other))
    assert np.array_equal(np.delete(in_bytes, 7, axis=1), np.delete(wider, 7, axis=1))
    assert not np.array_equal(in_bytes[:, 7], wider[:, 7])


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-38, 1e-44, 3e38])
def test_extreme_rows_stay_numbers(forced: Kernels, value: float) -> None:
    product = Product(40, 96)
    session, _ = open_with(forced, model_of(product))
    x = np.full((3, 96), value, np.float32)
    exact, bound = product.expected(x)
    assert (np.abs(run(session, x).astype(np.float64) - exact) <= bound + 1e-28).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_spoils_its_own_row_only(forced: Kernels, value: float) -> None:
    product = Product(40, 96)
    session, _ = open_with(forced, model_of(product))
    clean = product.rows(5)
    x = clean.copy()
    x[2, 50] = value
    found, expected = run(session, x), run(session, clean)
    assert np.isnan(found[2]).all()
    assert np.array_equal(found[[0, 1, 3, 4]], expected[[0, 1, 3, 4]])


def test_sessions_in_threads_do_not_meet(forced: Kernels) -> None:
    tasks = [(Product(300, 256, seed=1), 3), (Product(130, 512, bits=8, seed=2), 9)]
    wrong: list[str] = []

    def work(product: Product, rows: int) -> None:
        session, _ = open_with(forced, model_of(product))
        x = product.rows(rows)
        expected = run(session, x)
        wrong.extend("differs" for _ in range(60) if not np.array_equal(run(session, x), expected))

    threads = [threading.Thread(target=work, args=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_one_session_in_two_threads(forced: Kernels) -> None:
    product = Product(300, 256)
    session, _ = open_with(forced, model_of(product))
    inputs = [product.rows(rows, seed=rows) for rows in (1, 7)]
    expected = [run(session, x) for x in inputs]
    wrong: list[int] = []

    def work(at: int) -> None:
        wrong.extend(at for _ in range(60) if not np.array_equal(run(session, inputs[at]), expected[at]))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_weights_in_a_file_of_their_own(forced: Kernels, tmp_path: Path) -> None:
    product = Product(64, 128, zeros="packed", bias=True)
    x = product.rows(4)
    session, used = open_with(forced, str(save_outside(model_of(product), tmp_path)))
    assert used.name == forced.name
    assert np.array_equal(run(session, x), run(open_with(forced, model_of(product))[0], x))


LEFT_TO_ORT: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "weights that are fed": ({}, {}, ["weights"]),
    "scales that are fed": ({}, {}, ["scales"]),
    "weights packed for another device": ({}, {"weight_prepacked": 1}, []),
    "float activations asked for": ({}, {"accuracy_level": 1}, []),
    "a group index": ({"groups": np.repeat(np.arange(3, dtype=np.int32), 32)}, {}, []),
}


OLD_RUNTIME = tuple(map(int, ort.__version__.split(".")[:2])) < (1, 30)
if OLD_RUNTIME:  # it does not know the attribute
    del LEFT_TO_ORT["weights packed for another device"]


@pytest.mark.parametrize("case", LEFT_TO_ORT)
def test_what_is_not_taken_runs_on_onnx_runtime_and_says_why(forced: Kernels, case: str) -> None:
    added, attributes, fed = LEFT_TO_ORT[case]
    product = Product(64, 96)
    stored = product.stored() | added
    session, used = open_with(forced, model_of(product, stored, fed, **attributes))
    assert used.name == "" and used.absent
    x = product.rows(3)
    found = session.run(None, {"x": x[None]} | {name: stored[name] for name in fed})[0][0]
    exact, bound = product.expected(x)
    assert (np.abs(found - exact) <= bound).all()


def _without(kernels_absent: str = "") -> Kernels:
    return Kernels(absent=kernels_absent)


BROKEN: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "weights too short": ({"weights": np.zeros((64, 3, 8), np.uint8)}, {}),
    "weights of fewer columns": ({"weights": np.zeros((60, 3, 16), np.uint8)}, {}),
    "flat weights": ({"weights": np.zeros(64 * 3 * 16, np.uint8)}, {}),
    "too few scales": ({"scales": np.ones((64, 2), np.float32)}, {}),
    "too few zero points": ({"zeros": np.zeros((64, 1), np.uint8)}, {}),
    "K that is too large": ({}, {"K": 1 << 40}),
    "K of zero": ({}, {"K": 0}),
    "a negative N": ({}, {"N": -5}),
    "a strange block": ({}, {"block_size": 24}),
    "no block": ({}, {"block_size": 0}),
    "a strange width": ({}, {"bits": 5}),
}


def _outcome(ours: Kernels, model: bytes | str, x: np.ndarray[Any, Any]) -> str:
    """What a session says to the model or, at the latest, to a run."""
    try:
        run(open_with(ours, model)[0], x)
    except Exception as error:  # noqa: BLE001 - compared as text
        return str(error)
    return "runs"


@pytest.mark.skipif(OLD_RUNTIME, reason="it reads beyond such weights by itself")
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_model_ends_in_onnx_runtimes_own_error(forced: Kernels, case: str) -> None:
    changed, attributes = BROKEN[case]
    product = Product(64, 96)
    model = model_of(product, product.stored() | changed, **attributes)
    assert _outcome(forced, model, product.rows(2)) == _outcome(_without(), model, product.rows(2)) != "runs"


def test_truncated_weights_end_in_onnx_runtimes_own_error(forced: Kernels, tmp_path: Path) -> None:
    product = Product(640, 960)
    path = save_outside(model_of(product), tmp_path)
    data = tmp_path / "model.onnx_data"
    data.write_bytes(data.read_bytes()[:-5000])
    assert (
        _outcome(forced, str(path), product.rows(2))
        == _outcome(_without(), str(path), product.rows(2))
        != "runs"
    )


def test_a_wrong_input_is_an_error_of_that_run(forced: Kernels) -> None:
    product = Product(64, 96)
    session, _ = open_with(forced, model_of(product))
    with pytest.raises(Exception, match="K"):
        session.run(None, {"x": np.zeros((1, 2, 95), np.float32)})
    assert run(session, product.rows(2)).shape == (2, 64)


def test_a_wrong_bias_is_an_error_of_that_run(forced: Kernels) -> None:
    product = Product(64, 96)
    stored = product.stored() | {"bias": np.zeros(63, np.float32)}
    assert "bias" in _outcome(forced, model_of(product, stored), product.rows(2)).lower()


RESIDENT = """
import sys
from pathlib import Path
from support.matmulnbits import Product, open_with, run
from specdec_onnx.runtime.kernels import kernels

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

before = resident()
session, used = open_with(kernels(), sys.argv[1])
after = resident()
product = Product(8192, 8192)
found = [run(session, product.rows(2)) for _ in range(2)]
assert used.name and (found[0] == found[1]).all()
print(after - before)
"""


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="Linux tells which pages are a file's")
def test_weights_are_resident_once(tmp_path: Path) -> None:
    """They lie in a mapped file and, repacked, in memory; the file's pages are let go."""
    path = save_outside(model_of(Product(8192, 8192)), tmp_path)
    command = [sys.executable, "-c", RESIDENT, str(path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    grown = int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    packed = 8192 * 8192 // 2 + 8192 * 8192 // 32 * 4
    assert 0.9 * packed < grown < 1.5 * packed


def test_closed_sessions_give_their_memory_back(forced: Kernels) -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc")

    def resident() -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1])

    model = model_of(Product(4096, 4096))
    open_with(forced, model)
    before = resident()
    for _ in range(8):
        open_with(forced, model)
    assert resident() - before < 40_000  # 8 sessions of 10 MB each


def test_our_operator_is_the_one_that_runs() -> None:
    """Its arithmetic is not ONNX Runtime's, so a session that kept the built-in kernel would give other bits."""
    product = Product(64, 96)
    x = product.rows(3)
    ours = run(open_with(front._kernels(SETS[0]), model_of(product))[0], x)
    theirs = run(open_with(_without(), model_of(product))[0], x)
    assert not np.array_equal(ours, theirs)
