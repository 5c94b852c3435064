"""What people can ask of an export, and the order it makes for each model."""

from dataclasses import dataclass, replace

from specdec_onnx.export.assemble import CONTEXT, Cache, Depth, Order
from specdec_onnx.export.linear import parse_format

TARGET_BLOCK, DRAFT_BLOCK = 32, 128
"""int4 block sizes: small for a target's quality, large for a draft's speed."""

CANDIDATES = ("w8a8", "int4")
"""The target formats that "auto" measures."""

TRIM = 32768
"""Token ids a draft's head keeps, beside the special tokens, unless told otherwise."""


@dataclass(frozen=True)
class Options:
    """How a pair is made; a `target_format` of "auto" is chosen by measuring.

    `trim` is how many token ids the draft's head keeps, None for all; `trim_by` which ones: the "lowest", or those of
    the highest "frequency" in built-in text. `smooth`: w8a8 and int4 are fitted to what the model reads of built-in text. `graph`: "fused", or "portable" for
    families the graph builder does not know (through Optimum, without smoothing). `draft_layers`: how many of the
    draft's layers are kept, "auto" for as many as pay, None for all. `cache` is the type of keys and values.
    """

    target_format: str = "w8a8"
    draft_format: str = "int4"
    trim: int | None = TRIM
    context: int = CONTEXT
    smooth: bool = True
    graph: str = "fused"
    trim_by: str = "lowest"
    draft_layers: Depth | None = None
    cache: Cache = "fp32"

    def target(self) -> Order:
        """The order for the target; SpecdecError for an unknown format."""
        auto = self.target_format == "auto"
        formats = [
            parse_format(name, TARGET_BLOCK) for name in (CANDIDATES if auto else (self.target_format,))
        ]
        candidates = tuple(formats) if auto else ()
        whole = Order(formats[0], None, self.context, self.smooth, self.graph, cache=self.cache)
        return replace(whole, candidates=candidates)

    def draft(self) -> Order:
        """The order for the draft; SpecdecError for an unknown format."""
        format = parse_format(self.draft_format, DRAFT_BLOCK)
        whole = Order(format, self.trim, self.context, self.smooth, self.graph, self.trim_by)
        return replace(whole, depth=self.draft_layers, cache=self.cache)
