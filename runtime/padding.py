"""How passes are widened so that plain steps and verifying passes take the same kernels."""

from dataclasses import dataclass

ATTENTION_TILE = 32
"""ONNX Runtime's CPU attention works through the rows of a pass in tiles, and a tile with a single row takes another
kernel whose last bits differ. Tiles hold a multiple of this many rows (2 * head_dim, or fewer to fit the L2 cache).
A pass that never leaves one row alone gives the same logits however a text is cut into passes."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Widths are a multiple of `multiple`, and no tile of `tile` rows holds a single row (0: no tiles)."""

    multiple: int = 1
    tile: int = 0

    def width(self, count: int) -> int:
        """Rows of a pass over `count` tokens; those behind the tokens are dummies."""
        width = -(-count // self.multiple) * self.multiple
        return width + 1 if self.tile and width % self.tile == 1 else width


NO_PADDING = Padding()
PAIRS = Padding(tile=ATTENTION_TILE)
EVEN = Padding(multiple=2)
EIGHTS = Padding(multiple=8)

PADDINGS = (NO_PADDING, PAIRS, EVEN, EIGHTS)
"""From the cheapest on; the self-test takes the first that makes a device's passes agree."""

SPARE_ROWS = 8
"""Cache rows that padding may touch behind the last token."""
