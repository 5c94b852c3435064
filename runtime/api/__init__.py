"""Speculative decoding on ONNX Runtime that never changes a token.

>>> import specdec_onnx as sd
>>> engine = sd.load("pairs/qwen2.5-coder-1.5b")
>>> for step in engine.stream("Reverse a string in C", max_new_tokens=200):
...     print(step.text, end="", flush=True)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_onnx.models.errors import SpecdecError as SpecdecError
    from specdec_onnx.runtime.engine import Engine as Engine
    from specdec_onnx.runtime.engine import load as load
    from specdec_onnx.runtime.generate import Step as Step
    from specdec_onnx.runtime.sampling.constraint import Constraint as Constraint
    from specdec_onnx.runtime.sampling.parameters import Parameters as Parameters


__version__ = "0.1.0"
__all__ = ["Constraint", "Engine", "Parameters", "SpecdecError", "Step", "load"]

_HOMES = {
    "Engine": "specdec_onnx.runtime.engine",
    "load": "specdec_onnx.runtime.engine",
    "Step": "specdec_onnx.runtime.generate",
    "Constraint": "specdec_onnx.runtime.sampling.constraint",
    "Parameters": "specdec_onnx.runtime.sampling.parameters",
    "SpecdecError": "specdec_onnx.models.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
