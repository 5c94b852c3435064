"""What config.json says of a decoder, and what is refused by name."""

from typing import Any

import pytest
from support.families import LONG_ROPE
from support.tiny import tiny_config

from specdec_onnx.export.graph.architecture import read_architecture
from specdec_onnx.models.errors import SpecdecError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"hidden_act": "relu"}, "relu"),
        ({"head_dim": 24}, "heads of size 24"),
        ({"partial_rotary_factor": 0.75, "head_dim": 32}, "24 are rotated"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "spiral"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "incomplete"),
        ({"hidden_size": "large"}, "hidden_size"),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecdecError, match=message):
        read_architecture(tiny_config("llama", **settings))


def windows(family: str, layers: int = 6, **settings: Any) -> list[int]:
    config = tiny_config(family, num_hidden_layers=layers, **settings)
    return [span.window for span in read_architecture(config).spans]


def test_windows_by_rule() -> None:
    assert windows("llama", sliding_window=9) == [0] * 6
    assert windows("mistral", sliding_window=9) == [9] * 6
    assert windows("mistral", sliding_window=None) == [0] * 6
    assert windows("mistral", sliding_window=100000) == [0] * 6
    assert windows("gemma2", sliding_window=9) == [9, 0] * 3
    assert windows("gemma3_text", layers=7, sliding_window=9) == [9, 9, 9, 9, 9, 0, 9]
    assert windows("qwen2", sliding_window=9, max_window_layers=2) == [0] * 6
    asked = windows("qwen2", sliding_window=9, max_window_layers=4, use_sliding_window=True)
    assert asked == [0, 0, 0, 0, 9, 9]


def test_windows_layer_by_layer() -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    assert windows("gemma3_text", layers=3, sliding_window=9, layer_types=kinds) == [9, 0, 0]


def test_layers_without_rope() -> None:
    config = tiny_config("smollm3", num_hidden_layers=8)
    assert [index for index, span in enumerate(read_architecture(config).spans) if span.rope is None] == [
        3,
        7,
    ]
    listed = read_architecture(config | {"no_rope_layers": [0, 1, 1, 1, 1, 1, 1, 1]})
    assert [index for index, span in enumerate(listed.spans) if span.rope is None] == [0]


def test_long_rope_is_chosen_by_the_context() -> None:
    config = tiny_config(
        "phi3", rope_scaling=LONG_ROPE, max_position_embeddings=256, original_max_position_embeddings=64
    )
    short, at_limit, long = (read_architecture(config, positions).rope for positions in (0, 64, 65))
    assert short == at_limit
    assert long.inverse_frequencies[-1] * 8 == pytest.approx(short.inverse_frequencies[-1])
    capped = read_architecture(config | {"max_position_embeddings": 64}, 9999).rope
    assert capped.inverse_frequencies == short.inverse_frequencies
