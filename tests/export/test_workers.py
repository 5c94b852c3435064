"""Work spread over threads: order, errors, bounded memory, and the same bits however many cores there are."""

import threading
from pathlib import Path

import numpy as np
import pytest
from support.tiny import tiny_checkpoint

from specdec_onnx.export import workers
from specdec_onnx.export.pipeline import export_pair
from specdec_onnx.export.quantization.linear import quantize_blocks
from specdec_onnx.export.spec import Options
from specdec_onnx.export.workers import in_order


@pytest.fixture(params=[1, 3])
def _cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "own_cores", lambda: range(request.param))


@pytest.mark.usefixtures("_cores")
def test_results_come_in_the_order_of_the_items() -> None:
    assert list(in_order(lambda item: item * item, range(50))) == [item * item for item in range(50)]


@pytest.mark.usefixtures("_cores")
def test_an_error_in_a_thread_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda item: 1 // item, [3, 2, 1, 0, 1]))


def test_few_results_wait_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "own_cores", lambda: range(2))
    begun: list[int] = []
    results = in_order(begun.append, range(1000))
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert 1 <= len(begun) <= 5


def test_a_thread_starts_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "own_cores", lambda: range(2))

    def inner(_: int) -> bool:
        mine = threading.get_ident()
        return set(in_order(lambda _: threading.get_ident(), range(9))) == {mine}

    assert all(in_order(inner, range(6)))


def test_blocks_are_the_same_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    weight, importance = rng.standard_normal((67, 200), np.float32), rng.random(200, np.float32)
    monkeypatch.setattr("specdec_onnx.export.quantization.linear._CACHED_BYTES", 1 << 30)
    whole = quantize_blocks(weight, 32, importance)
    monkeypatch.setattr("specdec_onnx.export.quantization.linear._CACHED_BYTES", 3 * 4 * 200)
    parts = quantize_blocks(weight, 32, importance)
    np.testing.assert_array_equal(parts.levels, whole.levels)
    np.testing.assert_array_equal(parts.scales, whole.scales)


@pytest.mark.parametrize("format", ["w8a8", "int4"])
def test_an_export_is_the_same_on_any_number_of_cores(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec_onnx.export.quantization.linear._STRIPE_BYTES", 4096)
    data = []
    for count in (1, 4):
        monkeypatch.setattr(workers, "own_cores", lambda count=count: range(count))
        out = export_pair(
            tiny_checkpoint(), None, tmp_path / f"{format}-{count}", Options(target_format=format)
        )
        data.append((out / "onnx" / "model.onnx_data").read_bytes())
    assert data[0] == data[1]
