"""A checkpoint's tensors as the graph uses them: embedding, one layer at a time, final norm, head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint import BlockCheckpoint, Checkpoint
from specdec_onnx.export.graph.architecture import Architecture, Family, Span
from specdec_onnx.export.quantization.linear import Blocks, Format, WeightOnly, stack
from specdec_onnx.models.errors import SpecdecError

Array = NDArray[np.float32]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
QUERY_NORM, KEY_NORM = "self_attn.q_norm.weight", "self_attn.k_norm.weight"


@dataclass
class Layer:
    """One decoder layer; matrices are [out, in], query, key and value stacked, gate and up stacked.

    Norms that a family does not have are None: `input_norm` and `post_norm` come before attention and feed-forward,
    `attention_norm` and `feed_forward_norm` after them, `query_norm` and `key_norm` before the rotation. `blocks`
    holds the matrices that are copied as stored, by the names they have here, as parts below each other.
    """

    span: Span
    input_norm: Array | None
    qkv: Array
    qkv_bias: Array | None
    query_norm: Array | None
    key_norm: Array | None
    output: Array
    output_bias: Array | None
    attention_norm: Array | None
    post_norm: Array | None
    gate_up: Array
    gate_up_bias: Array | None
    down: Array
    down_bias: Array | None
    feed_forward_norm: Array | None
    blocks: Mapping[str, Sequence[Blocks]]

    def linear(self, kind: str) -> tuple[Array, Array | None, Sequence[Blocks] | None]:
        """Matrix, bias and stored blocks of `qkv`, `output`, `gate_up` or `down`."""
        return getattr(self, kind), getattr(self, f"{kind}_bias"), self.blocks.get(kind)


class Weights:
    """Reads a checkpoint by its architecture; every tensor is checked as it is read."""

    def __init__(
        self, checkpoint: Checkpoint, architecture: Architecture, format: Format | None = None
    ) -> None:
        """SpecdecError if a tensor is missing or has another shape than config.json implies.

        Matrices that `format` takes as stored keep their blocks; `copied` are the names of those read so far, and
        `has_blocks` says whether there are any, `has_zeros` and `lost_zeros` whether matrices with zero points were
        kept, or were left.
        """
        self._checkpoint = checkpoint
        self._blocked = format if isinstance(format, WeightOnly) else None
        self.copied: set[str] = set()
        self.has_blocks = self.has_zeros = self.lost_zeros = False
        self._architecture = architecture
        self._head = HEAD if HEAD in checkpoint.names() or not architecture.tied else EMBEDDING
        _check(
            checkpoint,
            expected_shapes(architecture) | {self._head: (architecture.vocabulary, architecture.hidden)},
        )

    def embedding(self) -> Array:
        """Float32 [vocabulary, hidden], with the family's factor on it."""
        return _times(self._read(EMBEDDING), self._architecture.scales.embedding)

    def final_norm(self) -> Array:
        """Float32 [hidden]."""
        return self._norm(FINAL_NORM)

    def head(self) -> Array:
        """Float32 [vocabulary, hidden]: the checkpoint's own head if it stores one, else the tied embedding."""
        return _times(self._read(self._head), self._architecture.scales.logits)

    def head_blocks(self) -> Sequence[Blocks] | None:
        """The head as it is stored, if it is copied."""
        return self._blocks("head", [self._head.removesuffix(".weight")], self._architecture.scales.logits)

    def layer(self, index: int) -> Layer:
        """Layer `index`, read now and not kept here."""
        architecture, prefix = self._architecture, f"model.layers.{index}."
        family, residual = architecture.family, architecture.scales.residual
        qkv, output, gates, down = (
            [f"{prefix}{name}" for name in names] for names in _linears(family).values()
        )
        norms = {position: self._norm(f"{prefix}{name}.weight") for position, name in family.norms.items()}
        heads = bool(family.qk_norm)
        return Layer(
            span=architecture.spans[index],
            input_norm=norms.get("before_attention"),
            qkv=self._stack(qkv),
            qkv_bias=self._stack_bias(qkv, architecture.qkv_bias),
            query_norm=self._norm(f"{prefix}{QUERY_NORM}") if heads else None,
            key_norm=self._norm(f"{prefix}{KEY_NORM}") if heads else None,
            output=_times(self._stack(output), residual),
            output_bias=self._stack_bias(output, architecture.output_bias, residual),
            attention_norm=norms.get("after_attention"),
            post_norm=norms.get("before_feed_forward"),
            gate_up=self._stack(gates),
            gate_up_bias=self._stack_bias(gates, architecture.mlp_bias),
            down=_times(self._stack(down), residual),
            down_bias=self._stack_bias(down, architecture.mlp_bias, residual),
            feed_forward_norm=norms.get("after_feed_forward"),
            blocks=self._layer_blocks(
                qkv=(qkv, 1.0), output=(output, residual), gate_up=(gates, 1.0), down=(down, residual)
            ),
        )

    def _layer_blocks(self, **linears: tuple[Sequence[str], float]) -> dict[str, Sequence[Blocks]]:
        stored = {kind: self._blocks(kind, names, factor) for kind, (names, factor) in linears.items()}
        return {kind: blocks for kind, blocks in stored.items() if blocks is not None}

    def _blocks(self, kind: str, names: Sequence[str], factor: float) -> Sequence[Blocks] | None:
        """Matrices below each other, if the format takes all of them as stored."""
        if self._blocked is None or not isinstance(self._checkpoint, BlockCheckpoint):
            return None
        checkpoint, format = self._checkpoint, self._blocked
        if not self._takes(kind, names):
            samples = [checkpoint.sample(f"{name}.weight") for name in names]
            self.lost_zeros |= any(sample is not None and sample.zeros is not None for sample in samples)
            return None
        parts = [blocks for name in names if (blocks := checkpoint.blocks(f"{name}.weight")) is not None]
        fitting = [kept for part in parts if (kept := format.fitted(part, kind)) is not None]
        self.copied.update(name for name, own, kept in zip(names, parts, fitting, strict=True) if own is kept)
        self.has_blocks = True
        self.has_zeros |= any(part.zeros is not None for part in fitting)
        return [part.times(factor) for part in stack(fitting)]

    def _takes(self, kind: str, names: Sequence[str]) -> bool:
        """Whether the format takes all of these matrices as stored; one row of each tells."""
        checkpoint, format = self._checkpoint, self._blocked
        if format is None or not isinstance(checkpoint, BlockCheckpoint):
            return False
        samples = [checkpoint.sample(f"{name}.weight") for name in names]
        return all(sample is not None and format.fitted(sample, kind) is not None for sample in samples)

    @cached_property
    def copies_head(self) -> bool:
        """Whether the format takes the head as stored."""
        return self._takes("head", [self._head.removesuffix(".weight")])

    @cached_property
    def all_stored(self) -> bool:
        """Whether the format takes every matrix as stored."""
        return self.copies_head and all(
            self._takes(kind, [f"model.layers.{index}.{name}" for name in names])
            for index in range(self._architecture.layers)
            for kind, names in _linears(self._architecture.family).items()
        )

    def _norm(self, name: str) -> Array:
        return self._read(name) + np.float32(self._architecture.family.norm_offset)

    def _stack(self, names: Sequence[str]) -> Array:
        parts = [self._read(f"{name}.weight") for name in names]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _stack_bias(self, names: Sequence[str], present: bool, factor: float = 1.0) -> Array | None:
        if not present:
            return None
        return _times(np.concatenate([self._read(f"{name}.bias") for name in names]), factor)

    def _read(self, name: str) -> Array:
        values = self._checkpoint.tensor(name)
        if not np.isfinite(values.sum()):
            raise SpecdecError(
                f"tensor {name} holds NaN or infinite values",
                "the source is damaged",
                "download the source again",
            )
        return values


def expected_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor but the head that the architecture needs."""
    layer = _layer_shapes(architecture)
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (architecture.vocabulary, architecture.hidden),
        FINAL_NORM: (architecture.hidden,),
    }
    for index in range(architecture.layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _layer_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    family, hidden, inner = architecture.family, architecture.hidden, architecture.intermediate
    linears = {
        "self_attn.o_proj": (hidden, architecture.qkv_sizes[0], architecture.output_bias),
        "mlp.down_proj": (hidden, inner, architecture.mlp_bias),
    }
    for names, sizes, biased in (
        (_qkv(family), architecture.qkv_sizes, architecture.qkv_bias),
        (_gate_up(family), (inner, inner), architecture.mlp_bias),
    ):
        rows = sizes if len(names) > 1 else (sum(sizes),)
        linears |= {name: (out, hidden, biased) for name, out in zip(names, rows, strict=True)}
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (hidden,) for name in family.norms.values()}
    shapes |= _head_norms(architecture)
    shapes |= {f"{name}.weight": (rows, columns) for name, (rows, columns, _) in linears.items()}
    return shapes | {f"{name}.bias": (rows,) for name, (rows, _, biased) in linears.items() if biased}


def _linears(family: Family) -> dict[str, Sequence[str]]:
    """The matrices of a layer by what `Layer` calls them, as the parts that a checkpoint stores."""
    output, down = ["self_attn.o_proj"], ["mlp.down_proj"]
    return {"qkv": _qkv(family), "output": output, "gate_up": _gate_up(family), "down": down}


def _qkv(family: Family) -> Sequence[str]:
    return ["self_attn.qkv_proj"] if family.fused else [f"self_attn.{name}_proj" for name in "qkv"]


def _gate_up(family: Family) -> Sequence[str]:
    return ["mlp.gate_up_proj"] if family.fused else [f"mlp.{name}_proj" for name in ("gate", "up")]


def _head_norms(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    queries, keys, _ = architecture.qkv_sizes
    head = architecture.head_dim
    sizes = {"": (), "head": (head, head), "projection": (queries, keys)}[architecture.family.qk_norm]
    return {name: (size,) for name, size in zip((QUERY_NORM, KEY_NORM), sizes, strict=False)}


def _times(values: Array, factor: float) -> Array:
    return values if factor == 1 else values * np.float32(factor)


def _check(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]]) -> None:
    names = checkpoint.names()
    missing = [name for name in shapes if name not in names]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise SpecdecError(
            f"the source lacks tensor {missing[0]}{more}",
            "its config.json requires it",
            "check that the source is complete",
        )
    for name, shape in shapes.items():
        if checkpoint.shape(name) != shape:
            raise SpecdecError(
                f"tensor {name} has shape {checkpoint.shape(name)}",
                f"its config implies {shape}",
                "download the source again",
            )
