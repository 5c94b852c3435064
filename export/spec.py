"""What to export: the choices a user makes, and what they mean for each model."""

from dataclasses import dataclass, replace
from typing import Literal

from specdec_onnx.export.quantization.linear import Format, parse_format
from specdec_onnx.runtime.kernels import kernels

LayerCount = int | Literal["auto"]
Cache = Literal["fp32", "fp16"]

CONTEXT = 32768
"""Most positions that a graph's rotary tables cover by default."""

TRIM = 32768
"""Token ids that a draft's head keeps by default, beside the special tokens."""

_TARGET_BLOCK, _DRAFT_BLOCK = 32, 128
"""int4 block sizes: small for a target's quality, large for a draft's speed."""

_CANDIDATES, _CANDIDATES_WITHOUT_KERNELS = ("mixed", "w8a8"), ("w8a8", "int4")
"""The target formats that "auto" measures, the default one first."""


@dataclass(frozen=True)
class ModelSpec:
    """What to make of one checkpoint.

    Args:
        format: How weights are stored.
        trim: How many token ids the head scores; None for all.
        context: Longest text, in tokens.
        smooth: Whether weights are calibrated on text, in formats that gain from it.
        graph: "fused", or "portable" (traced by Optimum).
        cache: Type of the key-value cache.
        candidates: Formats to measure; the best one is kept. Empty: `format`.
        layer_count: How many layers to keep, the least needed ones being left out; None for all.
    """

    format: Format
    trim: int | None = None
    context: int = CONTEXT
    smooth: bool = True
    graph: str = "fused"
    cache: Cache = "fp32"
    candidates: tuple[Format, ...] = ()
    layer_count: LayerCount | None = None


@dataclass(frozen=True)
class Options:
    """How a pair is exported, as on the command line.

    Args:
        target_format: The target's weight format; "auto" measures several and keeps the best. None: `mixed` where our
            kernels run, which make it both faster and better than int4, and `w8a8` elsewhere.
        draft_format: The draft's weight format.
        trim: How many token ids the draft's head scores, beside special tokens; None for all.
        context: Longest text, in tokens.
        smooth: Whether w8a8 and int4 are calibrated on built-in text.
        graph: "fused", or "portable" for families that the graph builder does not know.
        draft_layers: How many layers of the draft to keep; "auto" for as many as pay, None for all.
        cache: Type of the key-value cache.
    """

    target_format: str | None = None
    draft_format: str = "int4"
    trim: int | None = TRIM
    context: int = CONTEXT
    smooth: bool = True
    graph: str = "fused"
    draft_layers: LayerCount | None = None
    cache: Cache = "fp32"

    def target(self) -> ModelSpec:
        """The target's spec; SpecdecError for an unknown format."""
        auto = self.target_format == "auto"
        measured = _CANDIDATES if kernels().name else _CANDIDATES_WITHOUT_KERNELS
        names = measured if auto else [self.target_format or measured[0]]
        formats = [parse_format(name, _TARGET_BLOCK) for name in names]
        candidates = tuple(formats) if auto else ()
        return replace(self._common(formats[0]), candidates=candidates)

    def draft(self) -> ModelSpec:
        """The draft's spec; SpecdecError for an unknown format."""
        spec = self._common(parse_format(self.draft_format, _DRAFT_BLOCK))
        return replace(spec, trim=self.trim, layer_count=self.draft_layers)

    def _common(self, format: Format) -> ModelSpec:
        return ModelSpec(format, context=self.context, smooth=self.smooth, graph=self.graph, cache=self.cache)
