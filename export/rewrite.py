"""A traced graph with its linear layers replaced by ours."""

from pathlib import Path

import numpy as np
import onnx

from specdec_onnx.export.graph import Graph
from specdec_onnx.export.linear import Format
from specdec_onnx.export.transformer import DATA_FILE, GRAPH_FILE
from specdec_onnx.export.writer import TensorFile


def rewrite_linears(source: Path, folder: Path, format: Format) -> dict[str, int]:
    """Write `source` into `folder`, each product with a stored matrix in `format`; bytes of each tensor in the data."""
    model = onnx.load(source)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    linears = {node.output[0] for node in model.graph.node if _is_linear(node, tensors)}
    with TensorFile(folder / DATA_FILE) as data:
        graph = Graph(data, opset=_opset(model))
        for name in _still_read(model, linears):
            graph.constant(name, onnx.numpy_helper.to_array(tensors[name]))
        for node in model.graph.node:
            if node.output[0] in linears:
                rows = onnx.numpy_helper.to_array(tensors[node.input[1]]).T
                format.linear(graph, node.input[0], np.ascontiguousarray(rows, np.float32), node.output[0])
            else:
                graph.copy(node)
        graph.copy_signature(model.graph)
        graph.save(folder / GRAPH_FILE)
    return data.sizes


def _is_linear(node: onnx.NodeProto, tensors: dict[str, onnx.TensorProto]) -> bool:
    if node.op_type != "MatMul" or node.input[1] not in tensors:
        return False
    matrix = tensors[node.input[1]]
    return len(matrix.dims) == 2 and matrix.data_type == onnx.TensorProto.FLOAT and min(matrix.dims) > 1


def _still_read(model: onnx.ModelProto, linears: set[str]) -> list[str]:
    """Stored tensors that are read by more than linear layers, in their order; inner graphs may read any."""
    read = {
        name
        for node in model.graph.node
        for name in (node.input[:1] if node.output[0] in linears else node.input)
    }
    nested = any(attribute.HasField("g") for node in model.graph.node for attribute in node.attribute)
    return [tensor.name for tensor in model.graph.initializer if nested or tensor.name in read]


def _opset(model: onnx.ModelProto) -> int:
    return next(int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
