"""The embedding table as the graph reads it: in bytes where that loses little, else as finer numbers."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from support.tiny import export_tiny

from specdec_onnx.export.graph.builder import Graph, TensorFile
from specdec_onnx.export.graph.vocabulary import add_embedding, rounding_loss
from specdec_onnx.export.quality.report import read_report
from specdec_onnx.export.quantization.linear import parse_format
from specdec_onnx.runtime.model.device import session_options

Table = NDArray[np.float32]


def looked_up(folder: Path, table: Table, format: str, ids: list[int]) -> tuple[Table, int]:
    """The rows of `ids` as the exported nodes give them, and the bytes of the stored table."""
    folder.mkdir(exist_ok=True)
    with TensorFile(folder / "data") as data:
        graph = Graph(data)
        graph.input("input_ids", np.int64, [1, "length"])
        graph.output("embedding", np.float32, [1, "length", table.shape[1]])
        assert add_embedding(graph, table, parse_format(format)) == "embedding"
        graph.save(folder / "embedding.onnx")
    session = ort.InferenceSession(str(folder / "embedding.onnx"), session_options())
    return session.run(None, {"input_ids": np.array([ids])})[0][0], data.sizes["embedding.weight"]


def table(rows: int = 300, width: int = 64) -> Table:
    return np.random.default_rng(2).standard_normal((rows, width)).astype(np.float32)


@pytest.mark.parametrize("format", ["w8a8", "int4"])
def test_each_row_is_rounded_to_its_own_levels(tmp_path: Path, format: str) -> None:
    rows = table() * np.linspace(0.01, 20, 300, dtype=np.float32)[:, None]
    rows[7] = 0
    found, size = looked_up(tmp_path, rows, format, [0, 7, 299, 7])
    peaks = np.abs(rows[[0, 7, 299, 7]]).max(axis=1, keepdims=True)
    assert size == rows.size
    assert (np.abs(found - rows[[0, 7, 299, 7]]) <= peaks / 127 * 0.501).all()
    assert len(np.unique(np.rint(found[2] / peaks[2] * 127))) > 40


def test_a_row_is_the_same_in_any_company(tmp_path: Path) -> None:
    together, _ = looked_up(tmp_path, table(), "w8a8", [5, 100, 200, 250])
    for place, token in enumerate([5, 100, 200, 250]):
        np.testing.assert_array_equal(looked_up(tmp_path, table(), "w8a8", [token])[0][0], together[place])


def test_the_size_of_chunks_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, loss = looked_up(tmp_path, table(), "w8a8", [3, 299])[0], rounding_loss(table())
    data = (tmp_path / "data").read_bytes()
    monkeypatch.setattr("specdec_onnx.export.graph.vocabulary._CHUNK_ROWS", 7)
    np.testing.assert_array_equal(looked_up(tmp_path, table(), "w8a8", [3, 299])[0], whole)
    assert (tmp_path / "data").read_bytes() == data
    assert rounding_loss(table()) == pytest.approx(loss)


def test_a_table_that_bytes_would_hurt_is_stored_finer(tmp_path: Path) -> None:
    """In the format that stands for the source, and where one channel drowns the others in every row."""
    loud = table()
    loud[:, 5] *= 50
    for name, rows, format, tolerance in (("a", table(), "int8", 1e-3), ("b", loud, "w8a8", 1e-3)):
        found, size = looked_up(tmp_path / name, rows, format, [4, 9])
        assert size == 2 * rows.size
        np.testing.assert_allclose(found, rows[[4, 9]], rtol=tolerance)
    loud[:, 5] *= 1e4
    found, size = looked_up(tmp_path / "c", loud, "w8a8", [4, 9])
    assert size == 4 * loud.size
    np.testing.assert_array_equal(found, loud[[4, 9]])


def test_the_loss_is_a_share_of_each_channel() -> None:
    steps = np.abs(table()).max(axis=1, keepdims=True) / 127
    assert rounding_loss(table()) == pytest.approx(float(np.mean(steps**2)) / 12, rel=0.1)
    assert rounding_loss(np.zeros((4, 8), np.float32)) == 0


def test_a_quantized_model_stores_a_byte_for_each_number(tmp_path: Path) -> None:
    sizes = read_report(export_tiny(tmp_path / "m", format="w8a8"))["size_bytes"]
    assert sizes["embedding"] == 384 * 64 + 384 * 4
