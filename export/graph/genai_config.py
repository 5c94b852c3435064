"""genai_config.json: the same folders open in ONNX Runtime GenAI."""

from collections.abc import Mapping
from typing import Any

import onnx

from specdec_onnx.export.graph.architecture import Architecture
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.graph_file import cache_axes

_KEY, _VALUE = "past_key_values.%d.key", "past_key_values.%d.value"
_SESSION_OPTIONS: Mapping[str, Any] = {"log_id": "onnxruntime-genai", "provider_options": []}
_OUTPUTS = {
    "logits": "logits",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
}


def model_config(model: ModelFolder, architecture: Architecture, context: int) -> dict[str, Any]:
    """The configuration of a model folder whose graph was built by us, for texts of up to `context` tokens."""
    decoder = {
        "session_options": _SESSION_OPTIONS,
        "filename": "onnx/model.onnx",
        "head_size": architecture.head_dim,
        "hidden_size": architecture.hidden,
        "inputs": _inputs("input_ids", "attention_mask"),
        "outputs": _OUTPUTS,
        "num_attention_heads": architecture.heads,
        "num_hidden_layers": architecture.layers,
        "num_key_value_heads": architecture.kv_heads,
    }
    kind = architecture.family.genai_type or architecture.model_type
    pad = model.generation.get("pad_token_id", model.config.get("pad_token_id"))
    return _config(model, kind, decoder, context, shared=True, pad=pad)


def prebuilt_config(model: ModelFolder, filename: str) -> dict[str, Any]:
    """The configuration of a graph that others built, from config.json and the graph's own inputs and outputs."""
    graph = onnx.load(model.graph, load_external_data=False).graph
    inputs = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    outputs = {value.name: value.type.tensor_type.shape.dim for value in graph.output}
    if "past_key_values.0.key" not in inputs:
        raise SpecdecError(
            f"{model.graph} cannot be used for speculative decoding",
            "it has no past_key_values.0.key",
            "export a text-generation graph with explicit KV-cache inputs (specdec-export does)",
        )
    caches = (inputs["past_key_values.0.key"], outputs.get("present.0.key"))
    shapes = [[axis.dim_value or axis.dim_param or None for axis in shape] for shape in caches if shape]
    heads, width = cache_axes("past_key_values.0.key", shapes, model.config)
    decoder = {
        "session_options": _SESSION_OPTIONS,
        "filename": filename,
        "head_size": width,
        "hidden_size": model.config.get("hidden_size"),
        "inputs": _inputs(
            *(name for name in ("input_ids", "attention_mask", "position_ids") if name in inputs)
        ),
        "outputs": _OUTPUTS,
        "num_attention_heads": model.config.get("num_attention_heads"),
        "num_hidden_layers": sum(name.endswith(".key") for name in inputs),
        "num_key_value_heads": heads,
    }
    shared = any(node.op_type == "GroupQueryAttention" for node in graph.node)
    return _config(model, model.model_type, decoder, model.context_length, shared)


def pair_config(target: Mapping[str, Any], draft: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a pair: the target's, with the draft's decoder beside its own."""
    roles = {"target": target["model"]["decoder"], "draft": draft["model"]["decoder"]}
    inner = {role: decoder | {"filename": f"{role}/{decoder['filename']}"} for role, decoder in roles.items()}
    context = min(target["model"]["context_length"], draft["model"]["context_length"])
    model = target["model"] | {
        "decoder": inner["target"],
        "draft": inner["draft"],
        "context_length": context,
    }
    return {"model": model, "search": _search(context), "speculative": {"max_draft_tokens": 4}}


def _inputs(*names: str) -> dict[str, str]:
    return {name: name for name in names} | {"past_key_names": _KEY, "past_value_names": _VALUE}


def _config(
    model: ModelFolder,
    kind: str,
    decoder: Mapping[str, Any],
    context: int,
    shared: bool,
    pad: int | None = None,
) -> dict[str, Any]:
    """GenAI wants every special token: the first EOS stands in for those that a model lacks."""
    eos = list(model.eos_token_ids)
    first = eos[0] if eos else 0
    return {
        "model": {
            "bos_token_id": model.bos_token_id if model.bos_token_id is not None else first,
            "context_length": context,
            "decoder": decoder,
            "eos_token_id": eos[0] if len(eos) == 1 else eos,
            "pad_token_id": pad if pad is not None else first,
            "type": kind,
            "vocab_size": model.vocab_size,
        },
        "search": _search(context, shared),
    }


def _search(context: int, shared: bool = True) -> dict[str, Any]:
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
