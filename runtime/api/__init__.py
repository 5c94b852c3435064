"""Speculative decoding on ONNX Runtime that never changes a token.

>>> import specdec_onnx as sd
>>> engine = sd.load("pairs/qwen2.5-coder-1.5b")
>>> for step in engine.stream("Reverse a string in C", max_new_tokens=200):
...     print(step.text, end="", flush=True)
"""

import logging
from typing import TYPE_CHECKING, Any

logging.getLogger("specdec_onnx").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from specdec_onnx.models.errors import SpecdecError as SpecdecError
    from specdec_onnx.runtime.chat import Chat as Chat
    from specdec_onnx.runtime.engine import Engine as Engine
    from specdec_onnx.runtime.engine import load as load
    from specdec_onnx.runtime.generate import Result as Result
    from specdec_onnx.runtime.generate import Statistics as Statistics
    from specdec_onnx.runtime.generate import Step as Step
    from specdec_onnx.runtime.sampling.constraint import Constraint as Constraint
    from specdec_onnx.runtime.sampling.parameters import Parameters as Parameters
    from specdec_onnx.runtime.turns import Stream as Stream


__version__ = "0.1.0"
__all__ = [
    "Chat",
    "Constraint",
    "Engine",
    "Parameters",
    "Result",
    "SpecdecError",
    "Statistics",
    "Step",
    "Stream",
    "load",
]

_HOMES = {
    "Chat": "specdec_onnx.runtime.chat",
    "Engine": "specdec_onnx.runtime.engine",
    "load": "specdec_onnx.runtime.engine",
    "Result": "specdec_onnx.runtime.generate",
    "Statistics": "specdec_onnx.runtime.generate",
    "Step": "specdec_onnx.runtime.generate",
    "Stream": "specdec_onnx.runtime.turns",
    "Constraint": "specdec_onnx.runtime.sampling.constraint",
    "Parameters": "specdec_onnx.runtime.sampling.parameters",
    "SpecdecError": "specdec_onnx.models.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
