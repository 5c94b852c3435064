"""genai_config.json: the same folders open in ONNX Runtime GenAI."""

from collections.abc import Mapping
from typing import Any

from specdec_onnx.export.architecture import Architecture
from specdec_onnx.models.folder import ModelFolder


def model_config(model: ModelFolder, architecture: Architecture, context: int) -> dict[str, Any]:
    """The configuration of a single model folder."""
    eos = list(model.eos_token_ids)
    pad = model.generation.get("pad_token_id", model.config.get("pad_token_id"))
    first = eos[0] if eos else 0
    return {
        "model": {
            "bos_token_id": model.bos_token_id if model.bos_token_id is not None else first,
            "context_length": context,
            "decoder": _decoder(architecture, "onnx/model.onnx"),
            "eos_token_id": eos[0] if len(eos) == 1 else eos,
            "pad_token_id": pad if pad is not None else first,
            "type": architecture.family.genai_type or architecture.model_type,
            "vocab_size": architecture.vocabulary,
        },
        "search": search(context),
    }


def pair_config(target: Mapping[str, Any], draft: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a pair: the target's, with the draft's decoder beside its own."""
    model = dict(target["model"])
    model["decoder"] = model["decoder"] | {"filename": f"target/{model['decoder']['filename']}"}
    model["draft"] = draft["model"]["decoder"] | {
        "filename": f"draft/{draft['model']['decoder']['filename']}"
    }
    context = min(target["model"]["context_length"], draft["model"]["context_length"])
    model["context_length"] = context
    return {"model": model, "search": search(context), "speculative": {"max_draft_tokens": 4}}


def _decoder(architecture: Architecture, filename: str) -> dict[str, Any]:
    return {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": filename,
        "head_size": architecture.head_dim,
        "hidden_size": architecture.hidden,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
        "num_attention_heads": architecture.heads,
        "num_hidden_layers": architecture.layers,
        "num_key_value_heads": architecture.kv_heads,
    }


def search(context: int, shared: bool = True) -> dict[str, Any]:
    """Greedy, with the cache written in place if it is `shared`."""
    return {
        "diversity_penalty": 0.0,
        "do_sample": False,
        "early_stopping": True,
        "length_penalty": 1.0,
        "max_length": context,
        "min_length": 0,
        "no_repeat_ngram_size": 0,
        "num_beams": 1,
        "num_return_sequences": 1,
        "past_present_share_buffer": shared,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 1,
        "top_p": 1.0,
    }
