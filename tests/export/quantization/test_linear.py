"""Each weight format against the arithmetic it stands for."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from specdec_onnx.export.graph.builder import Graph, TensorFile
from specdec_onnx.export.quantization.linear import (
    Format,
    RowwiseInt8,
    as_bytes,
    as_halves,
    column_scales,
    parse_format,
)
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.model.device import session_options

Matrix = NDArray[np.float32]


def multiply(folder: Path, format: Format, x: Matrix, weight: Matrix) -> Matrix:
    """x · weightᵀ as the exported nodes compute it; x is [rows, in]."""
    folder.mkdir(exist_ok=True)
    with TensorFile(folder / "data") as data:
        graph = Graph(data)
        graph.input("x", np.float32, [1, "rows", x.shape[1]])
        graph.output("y", np.float32, [1, "rows", len(weight)])
        format.linear(graph, "x", weight, "y")
        graph.save(folder / "linear.onnx")
    session = ort.InferenceSession(str(folder / "linear.onnx"), session_options())
    return session.run(["y"], {"x": x[None]})[0][0]


def random(seed: int, *shape: int) -> Matrix:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integer_product(x: Matrix, weight: Matrix) -> NDArray[np.float64]:
    """The w8a8 product in exact integers, scaled back in float64."""
    scales = column_scales(weight)
    grid = np.clip(np.rint(weight / scales[:, None]), -127, 127).astype(np.int64)
    peaks = np.abs(x).max(axis=1, keepdims=True)
    levels = np.rint(x / peaks / np.float32(1 / 127)).astype(np.int64)
    return levels @ grid.T * (scales.astype(np.float64) / 127) * peaks


@pytest.mark.parametrize(("rows", "inner", "out"), [(1, 64, 32), (2, 96, 48), (5, 100, 33), (16, 576, 130)])
@pytest.mark.parametrize("signed", [True, False])
def test_w8a8_is_the_integer_product(rows: int, inner: int, out: int, signed: bool, tmp_path: Path) -> None:
    x, weight = random(1, rows, inner), random(2, out, inner)
    product = multiply(tmp_path, RowwiseInt8(signed=signed), x, weight)
    np.testing.assert_allclose(product, integer_product(x, weight), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("signed", [True, False])
def test_w8a8_never_saturates(signed: bool, tmp_path: Path) -> None:
    """Pairs of extreme products overflow 16 bits in unsigned-by-signed kernels."""
    format = RowwiseInt8(signed=signed)
    x, weight = np.full((3, 256), 2.0, np.float32), np.full((16, 256), -0.5, np.float32)
    np.testing.assert_allclose(multiply(tmp_path, format, x, weight), -256.0, rtol=1e-5)
    np.testing.assert_allclose(multiply(tmp_path, format, -x, weight), 256.0, rtol=1e-5)


def test_w8a8_rows_never_meet(tmp_path: Path) -> None:
    x, weight = random(3, 6, 96), random(4, 40, 96)
    together = multiply(tmp_path, parse_format("w8a8"), x, weight)
    louder = x.copy()
    louder[3] *= 1000
    changed = multiply(tmp_path, parse_format("w8a8"), louder, weight)
    others = [0, 1, 2, 4, 5]
    np.testing.assert_array_equal(changed[others], together[others])


@pytest.mark.parametrize("inner", [1, 64, 67])
def test_w8a8_multiplies_zeros(inner: int, tmp_path: Path) -> None:
    x, weight = random(5, 3, inner), random(6, 32, inner)
    x[1], weight[7] = 0, 0
    product = multiply(tmp_path, parse_format("w8a8"), x, weight)
    assert np.isfinite(product).all()
    assert not product[1].any()
    assert not product[:, 7].any()


@pytest.mark.parametrize(
    ("format", "error"),
    [("fp32", 1e-6), ("w8a8", 0.02), ("int8", 0.02), ("int4", 0.2), ("int4-16", 0.2), ("int4-128", 0.25)],
)
@pytest.mark.parametrize("inner", [256, 144])
def test_every_format_stays_close_to_float(format: str, error: float, inner: int, tmp_path: Path) -> None:
    """Also where the last block is not full."""
    x, weight = random(7, 4, inner), random(8, 64, inner)
    exact = x @ weight.T
    product = multiply(tmp_path, parse_format(format), x, weight)
    assert np.linalg.norm(product - exact) / np.linalg.norm(exact) < error


def test_the_size_of_stripes_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = random(9, 2, 160), random(10, 70, 160)
    for format in map(parse_format, ("fp32", "w8a8", "int4", "int8")):
        monkeypatch.setattr("specdec_onnx.export.quantization.linear._STRIPE_BYTES", 1 << 30)
        whole = multiply(tmp_path / "whole", format, x, weight)
        monkeypatch.setattr("specdec_onnx.export.quantization.linear._STRIPE_BYTES", 7 * 4 * 70)
        np.testing.assert_array_equal(multiply(tmp_path / "parts", format, x, weight), whole)
        assert (tmp_path / "whole" / "data").read_bytes() == (tmp_path / "parts" / "data").read_bytes()


def test_formats_are_named_as_people_write_them() -> None:
    assert parse_format("int4", block=128).name == "int4-128"
    assert parse_format("int4-64", block=128).name == "int4-64"
    assert parse_format("int8", block=128).name == "int8-32"
    assert [parse_format(name).name for name in ("w8a8", "fp32")] == ["w8a8", "fp32"]


@pytest.mark.parametrize("text", ["int5", "int4-31", "q4_k", "", "W8A8 "])
def test_an_unknown_format_is_refused(text: str) -> None:
    with pytest.raises(SpecdecError, match="unknown format"):
        parse_format(text)


def stored_scales(folder: Path, format: str) -> Matrix:
    multiply(folder, parse_format(format), random(1, 2, 256), random(2, 48, 256))
    tensors = {one.name: one for one in onnx.load(folder / "linear.onnx").graph.initializer}
    return np.asarray(onnx.numpy_helper.to_array(tensors["y.scale"])).reshape(48, -1)


def test_scales_of_8_bit_blocks_are_halves(tmp_path: Path) -> None:
    """Our kernels read halves, which take half the bytes."""
    scales = stored_scales(tmp_path, "int8")
    np.testing.assert_array_equal(scales.astype(np.float16), scales)


@pytest.mark.parametrize("format", ["int4", "int4-128"])
def test_scales_of_4_bit_blocks_count_units_of_their_row(tmp_path: Path, format: str) -> None:
    """Our kernels read such a scale in one byte."""
    scales = stored_scales(tmp_path, format)
    units = np.abs(scales).max(axis=1, keepdims=True) / np.float32(127)
    assert not (units.view(np.int32) & 255).any()
    np.testing.assert_array_equal(np.rint(scales / units) * units, scales)


def test_numbers_in_bytes_stay_near_the_exact_ones() -> None:
    rng = np.random.default_rng(5)
    scales = rng.uniform(0.2, 1, (40, 64)).astype(np.float32) * np.float32(1e-3)
    zeros = rng.uniform(0, 15, scales.shape).astype(np.float32)
    rounded, parts = as_bytes(scales, zeros)
    assert parts is not None
    np.testing.assert_allclose(rounded, scales, rtol=0, atol=1e-3 / 127 / 2 * 1.001)
    np.testing.assert_array_equal(parts * 16, np.rint(parts * 16))
    np.testing.assert_allclose(parts, zeros * scales / rounded, atol=1 / 32 * 1.001)


def test_scales_that_bytes_would_spoil_become_halves() -> None:
    """One block dwarfs the others, which would all count no unit."""
    scales = np.full((2, 64), 1e-3, np.float32)
    scales[1, 0] = 1
    np.testing.assert_array_equal(as_bytes(scales)[0], as_halves(scales)[0])
    scales[1, 0] = 1e-3
    assert not np.array_equal(as_bytes(scales)[0], as_halves(scales)[0])


@pytest.mark.parametrize("far", [-0.5, 16.5])
def test_a_zero_point_out_of_a_bytes_range_keeps_all_in_halves(far: float) -> None:
    zeros = np.full((3, 4), 8.03, np.float32)
    zeros[2, 1] = far
    scales = np.ones_like(zeros)
    np.testing.assert_array_equal(as_bytes(scales, zeros)[1], as_halves(scales, zeros)[1])


def test_a_row_of_zeros_has_scales_of_zero() -> None:
    scales, parts = as_bytes(np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32))
    assert not scales.any() and parts is not None and not parts.any()


@pytest.mark.parametrize("size", [1e-7, 1e6])
def test_scales_out_of_a_halfs_range_stay_floats(size: float) -> None:
    scales = (np.random.default_rng(3).uniform(0.5, 1, (3, 4)) * size).astype(np.float32)
    np.testing.assert_array_equal(as_halves(scales)[0], scales)


def test_a_tiny_scale_beside_large_ones_does_not_keep_the_matrix_in_floats() -> None:
    scales = np.array([[1e-9, 1.2345]], np.float32)
    np.testing.assert_allclose(as_halves(scales)[0], scales, rtol=0, atol=1.2345 / 2048)
