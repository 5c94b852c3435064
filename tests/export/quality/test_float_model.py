"""The float model run one layer at a time against a plain numpy forward."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.reference import reference_logits
from support.tiny import tiny_checkpoint

from specdec_onnx.export.checkpoint.weights import Weights
from specdec_onnx.export.graph.architecture import read_architecture
from specdec_onnx.export.quality.float_model import FloatModel
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
def test_the_float_model_equals_numpy(family: str, sizes: dict[str, Any]) -> None:
    checkpoint = tiny_checkpoint(family, seed=6, **sizes)
    expected = reference_logits(checkpoint.config, checkpoint.tensors, TOKENS)
    np.testing.assert_allclose(FloatModel(checkpoint).logits(TOKENS), expected, atol=1e-4)


def test_one_session_serves_all_layers() -> None:
    model = FloatModel(tiny_checkpoint(num_hidden_layers=5))
    model.logits(TOKENS)
    assert len(model._sessions) == 3


def test_several_texts_at_once_and_what_their_linear_layers_read() -> None:
    checkpoint = tiny_checkpoint(seed=6)
    model, rows = FloatModel(checkpoint), np.array([TOKENS[:9], TOKENS[9:18]])
    layer, x = Weights(checkpoint, read_architecture(checkpoint.config)).layer(0), model.embed(rows)
    together, _, read = model.layer(layer, x, np.zeros_like(x))
    alone, _, read_alone = model.layer(layer, x[1:], np.zeros_like(x[1:]))
    np.testing.assert_allclose(together[1:], alone, atol=1e-5)
    assert {name: rows.shape for name, rows in read.items()} == {
        "qkv": (2, 9, 64),
        "output": (2, 9, 64),
        "gate_up": (2, 9, 64),
        "down": (2, 9, 96),
    }
    np.testing.assert_allclose(read["down"][1:], read_alone["down"], atol=1e-5)
    np.testing.assert_allclose(read["down"] @ layer.down.T, together, atol=1e-4)


def test_a_checkpoint_of_an_unknown_family_is_refused() -> None:
    checkpoint = tiny_checkpoint()
    with pytest.raises(SpecdecError, match="mamba"):
        FloatModel(replace(checkpoint, config={**checkpoint.config, "model_type": "mamba"}))
