"""GGUF's plain block types as blocks of integers around zero."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.blockwise import LOW, Blocks

_BLOCK = 32

Bytes = NDArray[np.uint8]


def read_blocks(raw: Bytes, kind: str) -> Blocks:
    """Stored rows [rows, bytes] of one of the PLAIN types, exactly."""
    return PLAIN[kind](raw)


def _q4_0(raw: Bytes) -> Blocks:
    """Half-precision scale, then 16 bytes: the lower halves are the block's first 16 levels, the upper its last."""
    scales, data = _apart(raw, 16)
    levels = np.concatenate([data & 15, data >> 4], axis=2).view(np.int8)
    levels += LOW
    return Blocks(levels, scales)


def _q8_0(raw: Bytes) -> Blocks:
    """Half-precision scale, then 32 signed bytes."""
    scales, data = _apart(raw, _BLOCK)
    return Blocks(np.ascontiguousarray(data).view(np.int8), scales, bits=8)


def _apart(raw: Bytes, size: int) -> tuple[NDArray[np.float32], Bytes]:
    """Scales [rows, blocks] and the `size` bytes behind each."""
    blocks = raw.reshape(len(raw), -1, 2 + size)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
    return scales, blocks[..., 2:]


PLAIN: Mapping[str, Callable[[Bytes], Blocks]] = {"Q4_0": _q4_0, "Q8_0": _q8_0}
"""Types of levels around zero. Q4_1's offsets would be zero points between levels, which ONNX Runtime takes a path for
that is 15 times slower; Q4_K's scales have scales."""
