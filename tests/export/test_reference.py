"""The float model run one layer at a time against a plain numpy forward."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.reference import reference_logits
from support.tiny import tiny_checkpoint

from specdec_onnx.export.reference import FloatModel
from specdec_onnx.models.errors import SpecdecError

TOKENS = [int(token) for token in np.random.default_rng(8).integers(0, 380, 30)]


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen2", {"tie_word_embeddings": False}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "num_hidden_layers": 3}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "hidden_size": 128}),
    ],
)
def test_float_model_equals_numpy(family: str, sizes: dict[str, Any]) -> None:
    checkpoint = tiny_checkpoint(family, seed=6, **sizes)
    expected = reference_logits(checkpoint.config, checkpoint.tensors, TOKENS)
    np.testing.assert_allclose(FloatModel(checkpoint).logits(TOKENS), expected, atol=1e-4)


def test_one_session_serves_all_layers() -> None:
    model = FloatModel(tiny_checkpoint(num_hidden_layers=5))
    model.logits(TOKENS)
    assert len(model._sessions) == 2


def test_unreadable_checkpoint() -> None:
    checkpoint = tiny_checkpoint()
    with pytest.raises(SpecdecError, match="mamba"):
        FloatModel(replace(checkpoint, config={**checkpoint.config, "model_type": "mamba"}))
