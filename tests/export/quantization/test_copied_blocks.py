"""Matrices that a GGUF file stores on a format's own grid arrive in the graph as they are."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from support.gguf_files import write_gguf
from support.graphs import GraphRunner
from support.reference import reference_logits
from support.tiny import TinyCheckpoint, export_model, tiny_checkpoint

from specdec_onnx.export.checkpoint import BlockCheckpoint, open_checkpoint
from specdec_onnx.export.checkpoint.gguf import GgufCheckpoint
from specdec_onnx.export.checkpoint.gguf_file import BLOCKED, read_blocks
from specdec_onnx.export.graph.builder import Graph, TensorFile
from specdec_onnx.export.pipeline import export_pair
from specdec_onnx.export.quality.float_model import FloatModel
from specdec_onnx.export.quality.report import read_report, render
from specdec_onnx.export.quantization.linear import AsStored, Blocks, as_halves, quantize_blocks, stack
from specdec_onnx.export.spec import Options
from specdec_onnx.models.folder import read_json
from specdec_onnx.runtime.model.device import Device

Matrix = NDArray[np.float32]
TOKENS = [int(token) for token in np.random.default_rng(4).integers(0, 380, 20)]
BOTH = [("Q4_0", "int4"), ("Q8_0", "int8")]
LINEARS = 7 * 2


def stored_weights(folder: Path) -> dict[str, Matrix]:
    """Every MatMulNBits weight of a graph, dequantized as ONNX Runtime documents it: [out, in]."""
    model = onnx.load(folder / "onnx" / "model.onnx")
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            sizes = {attribute.name: attribute.i for attribute in node.attribute}
            packed, scales = tensors[node.input[1]], tensors[node.input[2]]
            if sizes["bits"] == 4:
                packed = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1)
            zeros: Any = 1 << (sizes["bits"] - 1)
            if len(node.input) > 3:
                zeros = tensors[node.input[3]].reshape(len(packed), -1, 1)
            weights = (packed.astype(np.float32) - zeros) * scales.reshape(len(packed), -1, 1)
            found[node.output[0]] = weights.reshape(len(packed), -1)
        elif node.op_type == "Concat" and node.input[0] in found:
            found[node.output[0]] = np.concatenate([found[part] for part in node.input])
    return found


def rounded(checkpoint: TinyCheckpoint, kind: Kind, *names: str) -> Matrix:
    """What a file of that block type holds of some matrices, by the gguf package's arithmetic."""
    tensors = [checkpoint.tensor(f"{name}.weight") for name in names]
    return np.concatenate([dequantize(quantize(values, kind), kind) for values in tensors])


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize(("kind", "format"), BOTH)
def test_weights_are_what_the_file_holds(tmp_path: Path, family: str, kind: str, format: str) -> None:
    """Also the rows of queries and keys, which the llama architecture stores in another order."""
    tiny, block = tiny_checkpoint(family, tie_word_embeddings=False), Kind[kind]
    folder = export_model(write_gguf(tmp_path / "x.gguf", tiny, kind=block), tmp_path / "m", format=format)
    found, suffix = stored_weights(folder), ".unbiased" if family == "qwen2" else ""
    for index in range(2):
        own = f"model.layers.{index}."
        qkv = [f"{own}self_attn.{name}_proj" for name in "qkv"]
        gates = [f"{own}mlp.{name}_proj" for name in ("gate", "up")]
        expected = {
            f"qkv{suffix}": rounded(tiny, block, *qkv),
            "output": rounded(tiny, block, f"{own}self_attn.o_proj"),
            "gate_up": rounded(tiny, block, *gates),
            "down": rounded(tiny, block, f"{own}mlp.down_proj"),
        }
        for name, values in expected.items():
            np.testing.assert_array_equal(found[f"layer.{index}.{name}"], values)
    np.testing.assert_array_equal(found["logits"], rounded(tiny, block, "lm_head"))
    report = read_report(folder)
    assert report["copied_tensors"] == LINEARS + 1
    assert "15 tensors" in render(report)
    if format == "int4":
        assert report["calibration"]["rules"] == {"copied": 9}


@pytest.mark.parametrize(("kind", "format"), BOTH)
def test_it_is_no_farther_from_the_file_than_rounding_anew(tmp_path: Path, kind: str, format: str) -> None:
    file = write_gguf(tmp_path / "x.gguf", tiny_checkpoint("llama"), kind=Kind[kind])
    read = open_checkpoint(file)
    floats = TinyCheckpoint(read.config, {name: read.tensor(name) for name in read.names()})
    expected, lost = reference_logits(read.config, floats.tensors, TOKENS), []
    for source, name in ((file, "copied"), (floats, "anew")):
        logits = GraphRunner(export_model(source, tmp_path / name, format=format)).logits(TOKENS)
        lost.append(float(np.linalg.norm(logits - expected) / np.linalg.norm(expected)))
    assert lost[0] < 0.04
    assert lost[0] <= lost[1] * (1 + 1e-6)  # rounding anew may find the very integers of the file


def test_a_stack_is_copied_as_a_whole_or_not(tmp_path: Path) -> None:
    tiny = tiny_checkpoint("llama")
    kinds = {"attn_v": Kind.Q8_0, "ffn_down": Kind.Q4_1, "blk.1.ffn_up": Kind.F16}
    file = write_gguf(tmp_path / "x.gguf", tiny, kind=Kind.Q4_0, kinds=kinds)
    folder = export_model(file, tmp_path / "m", format="int4")
    report = read_report(folder)
    assert report["copied_tensors"] == 2 + 2 + 1  # output twice, gate and up of one layer, the tied head
    assert report["calibration"]["rules"]["copied"] == 2 + 1 + 1
    gates = [f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up")]
    found = stored_weights(folder)
    np.testing.assert_array_equal(found["layer.0.gate_up"], rounded(tiny, Kind.Q4_0, *gates))
    assert found["layer.0.qkv"].shape == (128, 64)


@pytest.mark.parametrize(
    ("kind", "format"),
    [("Q4_0", "int4-64"), ("Q4_0", "int8"), ("Q8_0", "int4"), ("Q4_1", "int4"), ("Q4_0", "w8a8")],
)
def test_other_grids_are_rounded_anew(tmp_path: Path, kind: str, format: str) -> None:
    file = write_gguf(tmp_path / "x.gguf", tiny_checkpoint("llama"), kind=Kind[kind])
    report = read_report(export_model(file, tmp_path / "m", format=format))
    assert report["copied_tensors"] == 0
    assert "copied" not in render(report)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_gguf_takes_blocks_of_any_size(tmp_path: Path, kind: str) -> None:
    """Zero points lose what a half loses, and of 5 bits, 8-bit levels; the model computes with the file's weights."""
    tiny = tiny_checkpoint("llama", tie_word_embeddings=False)
    file = write_gguf(tmp_path / "x.gguf", tiny, kind=Kind[kind])
    folder = export_model(file, tmp_path / "m", format="gguf")
    found = stored_weights(folder)
    for name, values in {
        "logits": rounded(tiny, Kind[kind], "lm_head"),
        "layer.1.down": rounded(tiny, Kind[kind], "model.layers.1.mlp.down_proj"),
    }.items():
        np.testing.assert_allclose(
            found[name], values, rtol=0, atol=np.abs(values).max() * (0.004 if kind == "Q5_1" else 0.001)
        )
    assert read_report(folder)["copied_tensors"] == (0 if kind == "Q5_1" else LINEARS + 1)
    read = open_checkpoint(file)
    floats = TinyCheckpoint(read.config, {name: read.tensor(name) for name in read.names()})
    expected = reference_logits(read.config, floats.tensors, TOKENS)
    logits = GraphRunner(folder).logits(TOKENS)
    assert np.linalg.norm(logits - expected) < (0.06 if kind == "Q5_1" else 0.04) * np.linalg.norm(expected)


def test_gguf_keeps_each_part_of_a_stack_in_its_own_kind(tmp_path: Path) -> None:
    tiny = tiny_checkpoint("llama")
    kinds = {"attn_v": Kind.Q8_0, "ffn_down": Kind.F16}
    file = write_gguf(tmp_path / "x.gguf", tiny, kind=Kind.Q4_0, kinds=kinds)
    folder = export_model(file, tmp_path / "m", format="gguf")
    own = "model.layers.1.self_attn."
    both = [
        rounded(tiny, Kind.Q4_0, f"{own}q_proj", f"{own}k_proj"),
        rounded(tiny, Kind.Q8_0, f"{own}v_proj"),
    ]
    np.testing.assert_array_equal(stored_weights(folder)["layer.1.qkv"], np.concatenate(both))
    report = read_report(folder)
    assert (report["format"], report["copied_tensors"]) == ("gguf", LINEARS + 1 - 2)


def test_without_our_kernels_zero_points_are_rounded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_KERNELS", "off")
    kinds = {"ffn_down": Kind.Q8_0}
    file = write_gguf(tmp_path / "x.gguf", tiny_checkpoint("llama"), kind=Kind.Q4_1, kinds=kinds)
    folder = export_model(file, tmp_path / "m", format="gguf")
    report = read_report(folder)
    assert report["copied_tensors"] == 2
    assert "kernels are not available" in report["notes"][0]
    assert "zero_points" not in read_json(folder / "specdec.json")


@pytest.mark.parametrize(("format", "runs"), [("gguf", False), ("int4", True)])
def test_the_float_model_runs_only_for_what_is_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, runs: bool
) -> None:
    ran = []
    layer = FloatModel.layer
    monkeypatch.setattr(FloatModel, "layer", lambda *args: ran.append(1) or layer(*args))
    kinds = {"ffn_down": Kind.Q8_0}
    file = write_gguf(tmp_path / "x.gguf", tiny_checkpoint("llama"), kind=Kind.Q4_0, kinds=kinds)
    export_model(file, tmp_path / "m", format=format)
    assert bool(ran) == runs


def test_a_source_without_blocks_becomes_int4(tmp_path: Path) -> None:
    report = read_report(export_model(tiny_checkpoint("llama"), tmp_path / "m", format="gguf"))
    assert (report["format"], report["copied_tensors"]) == ("int4-32", 0)


def bits_of(folder: Path) -> dict[str, int]:
    """Bits of each MatMulNBits of a graph, by its name."""
    nodes = onnx.load(folder / "onnx" / "model.onnx", load_external_data=False).graph.node
    products = [node for node in nodes if node.op_type == "MatMulNBits"]
    return {node.name: next(one.i for one in node.attribute if one.name == "bits") for node in products}


def test_mixed_copies_blocks_of_4_bits_and_rounds_feed_forward_layers_of_more(tmp_path: Path) -> None:
    tiny = tiny_checkpoint("llama")
    kinds = {"attn_v": Kind.Q8_0, "ffn_down": Kind.Q8_0}
    file = write_gguf(tmp_path / "x.gguf", tiny, kind=Kind.Q4_1, kinds=kinds)
    folder = export_model(file, tmp_path / "m", format="mixed")
    own, found, bits = "model.layers.1.self_attn.", stored_weights(folder), bits_of(folder)
    expected = rounded(tiny, Kind.Q8_0, f"{own}v_proj")
    np.testing.assert_array_equal(found["layer.1.qkv"][-len(expected) :], expected)
    assert [bits[f"layer.1.{name}"] for name in ("qkv.0", "qkv.1", "output", "gate_up", "down")] == [
        4,
        8,
        4,
        4,
        4,
    ]
    report = read_report(folder)
    assert (report["format"], report["copied_tensors"]) == ("mixed", LINEARS + 1 - 2)


def test_mixed_spends_8_bits_on_attention_and_head_where_nothing_is_copied(tmp_path: Path) -> None:
    folder = export_model(tiny_checkpoint("llama"), tmp_path / "m", format="mixed")
    bits = bits_of(folder)
    assert {name.rpartition(".")[2]: count for name, count in bits.items()} == {
        "qkv": 8,
        "output": 8,
        "gate_up": 4,
        "down": 4,
        "logits": 8,
    }


@pytest.mark.parametrize(("loudness", "bits"), [(0.2, 4), (5.0, 8)])
def test_mixed_gives_a_head_4_bits_if_that_moves_its_logits_little(
    tmp_path: Path, loudness: float, bits: int
) -> None:
    tiny = tiny_checkpoint("llama", tie_word_embeddings=False)
    tiny.tensors["lm_head.weight"] *= np.float32(loudness)
    file = write_gguf(tmp_path / "x.gguf", tiny, kind=Kind.Q4_0, kinds={"output.weight": Kind.Q8_0})
    assert bits_of(export_model(file, tmp_path / "m", format="mixed"))["logits"] == bits


@pytest.mark.parametrize(("setting", "format"), [("auto", "mixed"), ("off", "w8a8")])
def test_the_default_format_is_mixed_where_our_kernels_run(
    monkeypatch: pytest.MonkeyPatch, setting: str, format: str
) -> None:
    monkeypatch.setenv("SPECDEC_KERNELS", setting)
    assert Options().target().format.name == format


def test_of_a_copied_head_no_floats_are_read_and_of_a_rounded_one_no_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the largest matrix: holding it twice decides how much memory an export takes."""
    read: dict[str, list[str]] = {"tensor": [], "blocks": []}
    for kind, names in read.items():
        method = getattr(GgufCheckpoint, kind)
        monkeypatch.setattr(
            GgufCheckpoint,
            kind,
            lambda self, name, names=names, method=method: names.append(name) or method(self, name),
        )
    tiny = tiny_checkpoint("llama", tie_word_embeddings=False)
    file = write_gguf(tmp_path / "x.gguf", tiny, kind=Kind.Q4_0, kinds={"output.weight": Kind.Q8_0})
    export_model(file, tmp_path / "copied", format="gguf")
    assert ("lm_head.weight" in read["tensor"], "lm_head.weight" in read["blocks"]) == (False, True)
    read["blocks"].clear()
    export_model(file, tmp_path / "rounded", format="mixed")
    assert ("lm_head.weight" in read["tensor"], "lm_head.weight" in read["blocks"]) == (True, False)


def test_a_block_without_steps_is_its_offset() -> None:
    steps = np.full((1, 4, 32), 15, np.uint8)
    scales, offsets = (np.array([values], np.float32) for values in ([0, 0, 0.5, 1e-6], [0, -3, 0, 2]))
    blocks = Blocks.with_offsets(steps, scales, offsets, bits=4)
    halves = as_halves(blocks.scales, blocks.zeros)
    stored = Blocks(blocks.levels, halves[0], 4, halves[1])
    np.testing.assert_allclose(stored.matrix(128).reshape(4, 32)[:, 0], [0, -3, 7.5, 2], rtol=1e-5)
    assert blocks.zeros is not None and (blocks.zeros >= 0).all()


def test_a_trimmed_head_is_copied_too(tmp_path: Path) -> None:
    tiny = tiny_checkpoint("llama", tie_word_embeddings=False)
    file = write_gguf(tmp_path / "x.gguf", tiny, kind=Kind.Q4_0)
    options = Options(target_format="int8", draft_format="int4-32", trim=300)
    pair = export_pair(file, file, tmp_path / "p", options)
    head = rounded(tiny, Kind.Q4_0, "lm_head")
    np.testing.assert_array_equal(stored_weights(pair / "draft")["trimmed_logits"][:300], head[:300])
    report = read_report(pair)
    assert (report["target"]["copied_tensors"], report["draft"]["copied_tensors"]) == (0, LINEARS + 1)


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "x.gguf", tiny_checkpoint("llama"), kind=Kind.Q4_0)
    first, second = (export_model(file, tmp_path / name, format="int4") / "onnx" for name in "ab")
    for name in ("model.onnx", "model.onnx_data"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize("kind", sorted(BLOCKED))
def test_every_byte_is_understood(kind: str) -> None:
    raw = random_rows(kind)
    blocks, expected = read_blocks(raw, kind), dequantize(raw, Kind[kind])
    if blocks.zeros is None:
        np.testing.assert_array_equal(blocks.matrix(512), expected)
    else:
        assert_close(blocks, expected, 2**-10)  # at most, where a block is taken as constant
    assert blocks.packed().nbytes == 64 * 512 * blocks.bits // 8


def random_rows(kind: str, upper: int | None = None) -> Any:
    """64 stored rows of 512 weights, no number in them infinite, scales with the byte `upper` if that is given."""
    block, size = GGML_QUANT_SIZES[Kind[kind]]
    raw = np.random.default_rng(1).integers(0, 256, (64, 512 // block, size), np.uint8)
    places = [-1] if kind == "Q6_K" else [1, 3]
    raw[..., places] = raw[..., places] & 0x3F if upper is None else upper
    return raw.reshape(64, -1)


@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("kind", sorted(BLOCKED))
def test_a_product_is_that_with_the_files_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, kernels: str
) -> None:
    """What is lost is the rounding of the rows to 8 bits, with ONNX Runtime's kernels too."""
    monkeypatch.setenv("SPECDEC_KERNELS", kernels)
    raw = random_rows(kind, upper=0x1C)
    format = AsStored(4, 32)
    stored = format.fitted(read_blocks(raw, kind), "down")
    assert stored is not None
    with TensorFile(tmp_path / "data") as data:
        graph = Graph(data)
        graph.input("x", np.float32, [1, "rows", 512])
        graph.output("y", np.float32, [1, "rows", 128])
        format.copy_blocks(graph, "x", [stored.rows(slice(0, 64)), stored], 512, "y")
        graph.save(tmp_path / "model.onnx")
    session, _ = Device().open(tmp_path / "model.onnx", 1)
    x = np.random.default_rng(2).standard_normal((3, 512)).astype(np.float32)
    expected = np.tile(x @ dequantize(raw, Kind[kind]).T, (1, 2))
    difference = session.run(None, {"x": x[None]})[0][0] - expected
    assert np.linalg.norm(difference) < 0.012 * np.linalg.norm(expected)


def assert_close(blocks: Blocks, expected: Matrix, loss: float) -> None:
    """Within a share of each block's largest weight or step."""
    apart = expected.reshape(*blocks.levels.shape)
    sizes = np.maximum(np.abs(apart).max(axis=2), np.abs(blocks.scales))
    differences = np.abs(blocks.matrix(512).reshape(apart.shape) - apart).max(axis=2)
    assert (differences <= loss * sizes).all()


def test_blocks_are_cut_stacked_and_scaled() -> None:
    weight = np.random.default_rng(2).standard_normal((6, 64)).astype(np.float32)
    whole = quantize_blocks(weight, 32)
    halves: list[Blocks] = [whole.rows(slice(0, 3)), whole.rows(np.array([3, 4, 5]))]
    np.testing.assert_array_equal(stack(halves)[0].packed(), whole.packed())
    np.testing.assert_array_equal(whole.times(0.5).matrix(64), whole.matrix(64) / 2)


def test_a_float_file_has_no_blocks(tmp_path: Path) -> None:
    read = open_checkpoint(write_gguf(tmp_path / "x.gguf", tiny_checkpoint("llama")))
    assert isinstance(read, BlockCheckpoint)
    assert read.blocks("model.layers.0.mlp.up_proj.weight") is None
