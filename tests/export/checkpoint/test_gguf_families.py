"""Models of every family out of GGUF files: the same logits as from the checkpoint they were written from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.families import FAMILIES, LONG_ROPE
from support.gguf_files import write_gguf
from support.graphs import GraphRunner
from support.tiny import export_model, tiny_checkpoint

from specdec_onnx.export.checkpoint import open_checkpoint
from specdec_onnx.export.checkpoint.gguf import read_whole
from specdec_onnx.export.checkpoint.gguf_config import gguf_config
from specdec_onnx.models.errors import SpecdecError

TOKENS = [int(token) for token in np.random.default_rng(5).integers(1, 380, 40)]
LONG_TENSORS = {
    f"rope_factors_{name}.weight": np.array(LONG_ROPE[f"{name}_factor"], np.float32)
    for name in ("short", "long")
}
_ROOT = {"query_pre_attn_scalar": 32}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mistral": ("mistral", FAMILIES["mistral"][1], {}),
    "phi3": ("phi3", FAMILIES["phi3"][1], {}),
    "phi3 without window": ("phi3", FAMILIES["phi3"][1] | {"sliding_window": None}, {}),
    "gemma2": ("gemma2", FAMILIES["gemma2"][1] | _ROOT, {}),
    "gemma3": (
        "gemma3_text",
        FAMILIES["gemma3"][1] | _ROOT | {"num_hidden_layers": 6, "sliding_window_pattern": 6},
        {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0},
    ),
    "gemma3 by a list": (
        "gemma3_text",
        FAMILIES["gemma3"][1] | _ROOT | {"rope_scaling": None, "rope_local_base_freq": 500.0},
        {
            "gemma3.attention.sliding_window_pattern": [True, True, False],
            "gemma3.rope.freq_base_swa": 500.0,
        },
    ),
    "gemma3 by a number": (
        "gemma3_text",
        FAMILIES["gemma3"][1] | _ROOT | {"rope_scaling": None},
        {"gemma3.attention.sliding_window_pattern": 3},
    ),
    "granite": ("granite", FAMILIES["granite"][1], {}),
    "olmo2": ("olmo2", FAMILIES["olmo2"][1], {}),
    "smollm3": ("smollm3", FAMILIES["smollm3"][1] | {"no_rope_layer_interval": 4}, {}),
}


def logits(source: Any, folder: Path) -> Any:
    return GraphRunner(export_model(source, folder, format="fp32", context=64)).logits(TOKENS)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_checkpoint_s(case: str, tmp_path: Path) -> None:
    family, sizes, metadata = CASES[case]
    tiny = tiny_checkpoint(family, seed=3, **sizes)
    file = write_gguf(tmp_path / "tiny.gguf", tiny, metadata=metadata)
    expected = logits(tiny, tmp_path / "expected")
    assert expected.std() > 0.5
    np.testing.assert_allclose(logits(file, tmp_path / "found"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["phi3 short text", "phi3 long text"])
@pytest.mark.parametrize("typed", [True, False])
def test_longrope_comes_from_its_tensors(name: str, typed: bool, tmp_path: Path) -> None:
    tiny = tiny_checkpoint("phi3", seed=3, **FAMILIES[name][1])
    original = tiny.config["original_max_position_embeddings"]
    stretched = np.sqrt(1 + np.log(128 / original) / np.log(original))
    metadata = {
        "phi3.rope.scaling.original_context_length": original,
        "phi3.rope.scaling.attn_factor": float(stretched),
    } | ({"phi3.rope.scaling.type": "longrope"} if typed else {})
    file = write_gguf(tmp_path / "tiny.gguf", tiny, metadata=metadata, extra=LONG_TENSORS)
    expected = logits(tiny, tmp_path / "expected")
    # the attention factor comes back with float32's digits
    np.testing.assert_allclose(logits(file, tmp_path / "found"), expected, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize(("family", "layers"), [("gemma2", 46), ("gemma3_text", 62)])
def test_the_largest_gemmas_scale_attention_their_own_way(family: str, layers: int, tmp_path: Path) -> None:
    sizes = FAMILIES["gemma2"][1] | {"hidden_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1}
    for depth, root in ((layers, 48), (layers - 1, None)):
        tiny = tiny_checkpoint(family, **sizes | {"num_hidden_layers": 1})
        metadata = {f"{family.removesuffix('_text')}.block_count": depth}
        config = gguf_config(read_whole(write_gguf(tmp_path / f"{depth}.gguf", tiny, metadata=metadata)))
        assert config.get("query_pre_attn_scalar") == root


def test_gemma2_files_of_old_have_its_window(tmp_path: Path) -> None:
    tiny = tiny_checkpoint("gemma2", **FAMILIES["gemma2"][1])
    file = write_gguf(tmp_path / "x.gguf", tiny, without=["gemma2.attention.sliding_window"])
    assert open_checkpoint(file).config["sliding_window"] == 4096


@pytest.mark.parametrize(
    ("family", "metadata", "said"),
    [
        ("olmo2", {"olmo2.attention.sliding_window": 128}, "olmo2 is supported without windows"),
        ("gemma3_text", {"gemma3.attention.sliding_window": 0}, "sliding_window is 0"),
        ("phi3", {"phi3.rope.dimension_count": 64}, "rope.dimension_count is 64"),
        (
            "phi3",
            {"phi3.rope.scaling.type": "longrope"},
            "'longrope' without factors; linear and yarn are supported",
        ),
        ("granite", {"granite.logit_scale": "loud"}, "logit_scale is loud"),
        ("granite", {"granite.rope.dimension_count": 8}, "rope.dimension_count is 8"),
    ],
)
def test_what_is_not_understood(tmp_path: Path, family: str, metadata: dict[str, Any], said: str) -> None:
    name = "gemma3" if family == "gemma3_text" else family
    tiny = tiny_checkpoint(family, **FAMILIES[name][1])
    with pytest.raises(SpecdecError, match="does not describe its model") as raised:
        open_checkpoint(write_gguf(tmp_path / "x.gguf", tiny, metadata=metadata))
    assert said in str(raised.value)


def test_one_tensor_of_factors_alone(tmp_path: Path) -> None:
    tiny = tiny_checkpoint("phi3", **FAMILIES["phi3"][1])
    extra = {name: values for name, values in LONG_TENSORS.items() if "long" in name}
    metadata = {"phi3.rope.scaling.original_context_length": 64}
    with pytest.raises(SpecdecError, match=r"no tensor rope_factors_short\.weight"):
        open_checkpoint(write_gguf(tmp_path / "x.gguf", tiny, metadata=metadata, extra=extra))
