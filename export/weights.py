"""A checkpoint's tensors as the graph uses them: embedding, one layer at a time, final norm and head."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.architecture import Architecture
from specdec_onnx.export.checkpoint.base import Checkpoint
from specdec_onnx.models.errors import SpecdecError

Array = NDArray[np.float32]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


@dataclass
class Layer:
    """One decoder block; matrices are [out, in], query, key and value stacked, gate and up stacked."""

    input_norm: Array
    qkv: Array
    qkv_bias: Array | None
    output: Array
    output_bias: Array | None
    post_norm: Array
    gate_up: Array
    gate_up_bias: Array | None
    down: Array
    down_bias: Array | None


class Weights:
    """Reads a checkpoint as an architecture says; every tensor is checked when it is read."""

    def __init__(self, checkpoint: Checkpoint, architecture: Architecture) -> None:
        """SpecdecError if a tensor is missing or has another shape than config.json implies."""
        self._checkpoint = checkpoint
        self._architecture = architecture
        self._head = HEAD if HEAD in checkpoint.names() or not architecture.tied else EMBEDDING
        _check(
            checkpoint,
            expected_shapes(architecture) | {self._head: (architecture.vocabulary, architecture.hidden)},
        )

    def embedding(self) -> Array:
        """Float32 [vocabulary, hidden]."""
        return self._read(EMBEDDING)

    def final_norm(self) -> Array:
        """Float32 [hidden]."""
        return self._read(FINAL_NORM)

    def head(self) -> Array:
        """Float32 [vocabulary, hidden]: the checkpoint's own head if it stores one, else the tied embedding."""
        return self._read(self._head)

    def layer(self, index: int) -> Layer:
        """Block `index`, read now and kept by the caller alone."""
        look = self._architecture
        prefix = f"model.layers.{index}."
        projections = [f"{prefix}self_attn.{name}_proj" for name in "qkv"]
        gates = [f"{prefix}mlp.{name}_proj" for name in ("gate", "up")]
        return Layer(
            input_norm=self._read(f"{prefix}input_layernorm.weight"),
            qkv=self._stack(projections),
            qkv_bias=self._stack_bias(projections, look.qkv_bias),
            output=self._read(f"{prefix}self_attn.o_proj.weight"),
            output_bias=self._stack_bias([f"{prefix}self_attn.o_proj"], look.output_bias),
            post_norm=self._read(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._stack(gates),
            gate_up_bias=self._stack_bias(gates, look.mlp_bias),
            down=self._read(f"{prefix}mlp.down_proj.weight"),
            down_bias=self._stack_bias([f"{prefix}mlp.down_proj"], look.mlp_bias),
        )

    def _stack(self, names: Sequence[str]) -> Array:
        return np.concatenate([self._read(f"{name}.weight") for name in names])

    def _stack_bias(self, names: Sequence[str], present: bool) -> Array | None:
        return np.concatenate([self._read(f"{name}.bias") for name in names]) if present else None

    def _read(self, name: str) -> Array:
        values = self._checkpoint.tensor(name)
        if not np.isfinite(values.sum()):
            raise SpecdecError(
                f"tensor {name} holds NaN or infinite values", "the source is damaged", "get the source again"
            )
        return values


def expected_shapes(look: Architecture) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor but the head that the architecture needs."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (look.vocabulary, look.hidden),
        FINAL_NORM: (look.hidden,),
    }
    for index in range(look.layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in _layer_shapes(look).items()}
    return shapes


def _layer_shapes(look: Architecture) -> dict[str, tuple[int, ...]]:
    queries, keys, values = look.qkv_sizes
    linears = {
        "self_attn.q_proj": (queries, look.hidden, look.qkv_bias),
        "self_attn.k_proj": (keys, look.hidden, look.qkv_bias),
        "self_attn.v_proj": (values, look.hidden, look.qkv_bias),
        "self_attn.o_proj": (look.hidden, queries, look.output_bias),
        "mlp.gate_proj": (look.intermediate, look.hidden, look.mlp_bias),
        "mlp.up_proj": (look.intermediate, look.hidden, look.mlp_bias),
        "mlp.down_proj": (look.hidden, look.intermediate, look.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}.weight": (look.hidden,) for name in ("input_layernorm", "post_attention_layernorm")
    }
    shapes |= {f"{name}.weight": (out, inner) for name, (out, inner, _) in linears.items()}
    return shapes | {f"{name}.bias": (out,) for name, (out, _, biased) in linears.items() if biased}


def _check(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]]) -> None:
    names = checkpoint.names()
    missing = [name for name in shapes if name not in names]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise SpecdecError(
            f"the source lacks tensor {missing[0]}{more}",
            "its config asks for it",
            "check that the source is complete",
        )
    for name, shape in shapes.items():
        if checkpoint.shape(name) != shape:
            raise SpecdecError(
                f"tensor {name} has shape {checkpoint.shape(name)}",
                f"its config implies {shape}",
                "get the source again",
            )
