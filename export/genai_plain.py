"""genai_config.json for a graph that was made elsewhere."""

from typing import Any

import onnx

from specdec_onnx.export.genai import search
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.graph_file import cache_axes


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
