"""What config.json says of a decoder, and what is refused by name."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from support.families import LONG_ROPE
from support.tiny import tiny_config

from specdec_onnx.export.graph.architecture import FAMILIES, read_architecture
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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_key_value_heads", "2"),
        ("num_key_value_heads", [2]),
        ("num_key_value_heads", 3),
        ("num_attention_heads", 2**14),
        ("num_attention_heads", 2**40),
        ("num_hidden_layers", 2**40),
        ("hidden_size", 2**40),
        ("vocab_size", 2**30),
        ("intermediate_size", 1.5),
        ("head_dim", -16),
        ("rms_norm_eps", "1e-6"),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", [10000.0]),
        ("rope_theta", 0.5),
        ("partial_rotary_factor", 1e-9),
        ("partial_rotary_factor", 2),
        ("hidden_act", [1]),
        ("rope_scaling", 1),
        ("rope_scaling", "x"),
        ("rope_parameters", [1]),
        ("layer_types", 5),
        ("layer_types", [[1]]),
        ("tie_word_embeddings", "false"),
        ("attention_bias", 2),
    ],
)
def test_a_value_of_another_kind_or_size_is_named(key: str, value: Any) -> None:
    with pytest.raises(SpecdecError, match=f"config.json: {key} ") as caught:
        read_architecture(tiny_config("llama") | {key: value})
    assert len(str(caught.value)) < 400


KEYS = """attention_bias attention_multiplier attn_logit_softcapping embedding_multiplier final_logit_softcapping
head_dim hidden_act hidden_activation hidden_size intermediate_size layer_types logits_scaling
max_position_embeddings max_window_layers mlp_bias model_type no_rope_layer_interval no_rope_layers num_attention_heads
num_hidden_layers num_key_value_heads original_max_position_embeddings partial_rotary_factor query_pre_attn_scalar
residual_multiplier rms_norm_eps rope_freq_factors rope_local_base_freq rope_parameters rope_scaling rope_theta
sliding_window sliding_window_pattern tie_word_embeddings use_sliding_window vocab_size""".split()  # noqa: SIM905
ODD = (
    -1,
    0,
    1,
    7,
    2**40,
    10**400,
    0.3,
    1e-300,
    float("inf"),
    float("nan"),
    "",
    "2",
    [],
    [1],
    ["x"],
    {},
    {"a": 1},
    True,
)
SCALINGS = ("linear", "llama3", "longrope", "yarn")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_no_value_ends_in_a_traceback(family: str) -> None:
    for key in KEYS:
        for value in ODD:
            with suppress(SpecdecError):
                read_architecture(tiny_config(family) | {key: value})


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("value", ODD, ids=[f"{value!r:.12}" for value in ODD])
def test_no_rope_scaling_ends_in_a_traceback(kind: str, value: Any) -> None:
    keys = ("factor", "low_freq_factor", "beta_fast", "beta_slow")
    sound = dict.fromkeys(keys, 2.0) | {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    sound |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "rope_type": kind}
    for key in [*sound, "attention_factor"]:
        with suppress(SpecdecError):
            rope = read_architecture(tiny_config("llama", rope_scaling=sound | {key: value})).rope
            assert np.isfinite(rope.inverse_frequencies).all() and np.isfinite(rope.magnitude)


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
