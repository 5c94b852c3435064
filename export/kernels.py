"""What this machine's integer kernels do, found out by running one."""

from functools import lru_cache

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper, numpy_helper

from specdec_onnx.export.graph import IR_VERSION, MICROSOFT, OPSET

_WIDTH = 64
_EXTREME = 127


@lru_cache(maxsize=1)
def signed_weights_saturate() -> bool:
    """Whether uint8 activations times int8 weights lose what does not fit 16 bits, as on x86 without VNNI."""
    session = ort.InferenceSession(_extreme_product().SerializeToString(), providers=["CPUExecutionProvider"])
    rows = np.full((2, _WIDTH), 255, np.uint8)
    return bool((session.run(None, {"rows": rows})[0] != _EXTREME * _EXTREME * _WIDTH).any())


def _extreme_product() -> ModelProto:
    tensors = {
        "weight": np.full((_WIDTH, _WIDTH), _EXTREME, np.int8),
        "one": np.float32(1),
        "scale": np.ones(_WIDTH, np.float32),
        "zero_point": np.uint8(128),
    }
    node = helper.make_node(
        "MatMulIntegerToFloat",
        ["rows", "weight", "one", "scale", "zero_point"],
        ["product"],
        domain=MICROSOFT,
    )
    graph = helper.make_graph(
        [node],
        "extreme",
        [helper.make_tensor_value_info("rows", TensorProto.UINT8, [2, _WIDTH])],
        [helper.make_tensor_value_info("product", TensorProto.FLOAT, [2, _WIDTH])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
