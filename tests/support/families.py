"""A tiny config.json for every family and feature the graph builder knows; texts of 40 tokens reach past each window."""

from typing import Any

LONG_ROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.5, 1.8, 2.0],
    "long_factor": [1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 9.0, 16.0],
}
_PHI3: dict[str, Any] = {
    "hidden_size": 128,
    "partial_rotary_factor": 0.5,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_GEMMA: dict[str, Any] = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 32,
    "query_pre_attn_scalar": 20,
    "sliding_window": 9,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 48, "tie_word_embeddings": False}),
    "mistral window": ("mistral", {"sliding_window": 12}),
    "qwen2 window": ("qwen2", {"use_sliding_window": True, "sliding_window": 10, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3 biased": ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": False}),
    "smollm3": (
        "smollm3",
        {"num_hidden_layers": 4, "no_rope_layer_interval": 2, "pad_token_id": 0, "rope_theta": 50000.0},
    ),
    "phi3": ("phi3", _PHI3 | {"sliding_window": 11}),
    "phi3 short text": (
        "phi3",
        _PHI3
        | {"rope_scaling": LONG_ROPE, "max_position_embeddings": 128, "original_max_position_embeddings": 64},
    ),
    "phi3 long text": (
        "phi3",
        _PHI3
        | {"rope_scaling": LONG_ROPE, "max_position_embeddings": 128, "original_max_position_embeddings": 16},
    ),
    "gemma2": ("gemma2", _GEMMA | {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0}),
    "gemma3": (
        "gemma3_text",
        _GEMMA
        | {
            "num_hidden_layers": 3,
            "sliding_window_pattern": 3,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.11,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "olmo2": ("olmo2", {"tie_word_embeddings": False}),
}
