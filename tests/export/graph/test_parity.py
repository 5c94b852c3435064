"""Exported float32 graphs against a plain numpy forward."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.families import FAMILIES
from support.graphs import GraphRunner
from support.reference import reference_logits
from support.tiny import export_model, tiny_checkpoint

TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, 380, 40)]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2 tied": ("qwen2", {}),
    "qwen2 untied": ("qwen2", {"tie_word_embeddings": False}),
    "qwen2 one group": ("qwen2", {"num_key_value_heads": 1}),
    "llama tied": ("llama", {}),
    "llama untied": ("llama", {"tie_word_embeddings": False}),
    "llama without groups": ("llama", {"num_key_value_heads": 4}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head_dim apart": ("llama", {"head_dim": 32, "num_attention_heads": 6}),
    "llama linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama llama3": ("llama", {"rope_scaling": LLAMA3}),
    "llama frequency factors": ("llama", {"rope_freq_factors": [1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0]}),
    "qwen2 yarn": ("qwen2", {"rope_scaling": YARN, "rope_theta": 1000000.0, "head_dim": 32}),
    "qwen2 padded vocabulary": ("qwen2", {"vocab_size": 400, "spare_rows": 13}),
}
VARIANTS |= FAMILIES


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_numpy(variant: str, tmp_path: Path) -> None:
    family, sizes = VARIANTS[variant]
    checkpoint = tiny_checkpoint(family, seed=3, **sizes)
    runner = GraphRunner(export_model(checkpoint, tmp_path / "model", format="fp32", context=64))
    expected = reference_logits(checkpoint.config, checkpoint.tensors, TOKENS)
    assert expected.std() > 0.5
    np.testing.assert_allclose(runner.logits(TOKENS), expected, atol=1e-4)


@pytest.mark.parametrize("variant", ["llama tied", "qwen2 tied", *FAMILIES])
def test_any_cut_and_rollback_equal_numpy(variant: str, tmp_path: Path) -> None:
    family, sizes = VARIANTS[variant]
    checkpoint = tiny_checkpoint(family, seed=1, **sizes)
    runner = GraphRunner(export_model(checkpoint, tmp_path / "model", format="fp32", context=64))
    expected = reference_logits(checkpoint.config, checkpoint.tensors, TOKENS)
    for cuts in ([40], [1] * 40, [7, 1, 16, 2, 14]):
        runner.length, rows = 0, []
        for size in cuts:
            rows += [*runner.logits(TOKENS[runner.length : runner.length + size])]
        np.testing.assert_allclose(rows, expected, atol=1e-4)
    runner.length = 11
    runner.logits([0, 1, 2])
    runner.length = 11
    np.testing.assert_allclose(runner.logits(TOKENS[11:16]), expected[11:16], atol=1e-4)


@pytest.mark.parametrize("format", ["fp32", "w8a8", "int4"])
def test_only_the_last_rows_on_request(format: str, tmp_path: Path) -> None:
    runner = GraphRunner(export_model(tiny_checkpoint(), tmp_path / "model", format=format))
    whole = runner.logits(TOKENS[:9])
    for keep, rows in ((0, 9), (2, 2), (5, 5), (9, 9), (30, 9)):
        runner.length = 0
        np.testing.assert_array_equal(runner.logits(TOKENS[:9], num_logits_to_keep=keep), whole[-rows:])
