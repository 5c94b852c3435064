"""genai_config.json: the same folders open in ONNX Runtime GenAI."""

from collections.abc import Mapping
from typing import Any

import onnx

from specdec_onnx.export.graph.architecture import Architecture
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.graph_file import cache_axes


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


def plain_config(model: ModelFolder, filename: str) -> dict[str, Any]:
    """A genai_config.json from what config.json and the graph's own inputs say."""
    graph = onnx.load(model.graph, load_external_data=False).graph
    inputs = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    outputs = {value.name: value.type.tensor_type.shape.dim for value in graph.output}
    cache = inputs.get("past_key_values.0.key")
    if cache is None:
        raise SpecdecError(
            f"{model.graph} cannot be used for speculative decoding",
            "it has no past_key_values.0.key",
            "export a text-generation graph with explicit KV-cache inputs (specdec-export does)",
        )
    shapes = [
        [axis.dim_value or axis.dim_param or None for axis in found]
        for found in (cache, outputs.get("present.0.key"))
        if found
    ]
    heads, width = cache_axes("past_key_values.0.key", shapes, model.config)
    names = {name: name for name in ("input_ids", "attention_mask", "position_ids") if name in inputs}
    kinds = ("key", "value")
    shared = any(node.op_type == "GroupQueryAttention" for node in graph.node)
    eos = list(model.eos_token_ids)
    first = eos[0] if eos else 0
    return {
        "model": {
            "bos_token_id": model.bos_token_id if model.bos_token_id is not None else first,
            "context_length": model.context_length,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": filename,
                "head_size": width,
                "hidden_size": model.config.get("hidden_size"),
                "inputs": names | {f"past_{kind}_names": f"past_key_values.%d.{kind}" for kind in kinds},
                "outputs": {"logits": "logits"}
                | {f"present_{kind}_names": f"present.%d.{kind}" for kind in kinds},
                "num_attention_heads": model.config.get("num_attention_heads"),
                "num_hidden_layers": sum(name.endswith(".key") for name in inputs),
                "num_key_value_heads": heads,
            },
            "eos_token_id": eos[0] if len(eos) == 1 else eos,
            "pad_token_id": first,
            "type": model.model_type,
            "vocab_size": model.vocab_size,
        },
        "search": search(model.context_length, shared),
    }
