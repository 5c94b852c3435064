"""A half-precision key-value cache for an exported graph: required by attention on CUDA, and half the memory."""

import json
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from specdec_onnx.export.graph.transformer import GRAPH_FILE
from specdec_onnx.export.staging import write_json
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import replacing

_ROWS, _TABLES = (0, 1, 2), (7, 8)


def halve_cache(folder: Path) -> None:
    """Rewrite the graph of the model folder so that attention and cache are float16, the rest as before.

    Queries, keys and values are cast before attention, and its results after. The weights' file stays as it is.
    SpecdecError for a graph without GroupQueryAttention.
    """
    path = folder / "onnx" / GRAPH_FILE
    model = onnx.load(path, load_external_data=False)
    _rewrite(model)
    with replacing(path) as fresh:
        fresh.write_bytes(model.SerializeToString(deterministic=True))
    facts = folder / "specdec.json"
    write_json(facts, json.loads(facts.read_text(encoding="utf-8")) | {"cache": "fp16"})


def _rewrite(model: ModelProto) -> None:
    graph = model.graph
    nodes, tables = list(graph.node), dict[str, NodeProto]()
    if not any(node.op_type == "GroupQueryAttention" for node in nodes):
        raise SpecdecError("the cache cannot be stored as fp16", "the graph has no GroupQueryAttention")
    rewritten: list[NodeProto] = []
    for node in nodes:
        rewritten += _between_casts(node, tables) if node.op_type == "GroupQueryAttention" else [node]
    del graph.node[:]
    graph.node.extend([*tables.values(), *rewritten])
    _retype(graph)


def _between_casts(node: NodeProto, tables: dict[str, NodeProto]) -> list[NodeProto]:
    """The attention node between its casts; the casts of rotary tables are shared and go to `tables`."""
    rows, output = [node.input[index] for index in _ROWS if node.input[index]], node.output[0]
    for index in _TABLES:
        if name := node.input[index]:
            tables.setdefault(name, _cast(name, f"{name}.half", TensorProto.FLOAT16))
    for index in (*_ROWS, *_TABLES):
        node.input[index] = f"{name}.half" if (name := node.input[index]) else ""
    node.output[0] = f"{output}.half"
    before = [_cast(name, f"{name}.half", TensorProto.FLOAT16) for name in rows]
    return [*before, node, _cast(f"{output}.half", output, TensorProto.FLOAT)]


def _cast(source: str, target: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}.cast", to=kind)


def _retype(graph: GraphProto) -> None:
    for value in [*graph.input, *graph.output]:
        if value.name.startswith(("past_key_values.", "present.")):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
