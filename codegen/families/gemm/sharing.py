"""How tiles below each other share the fetching of the rows of B that come next, where these are packed as they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dhlo.codegen.families.gemm.microkernel import SHARING_PANELS
from dhlo.codegen.families.gemm.register_tile import TileSpec, depth
from dhlo.codegen.kernel_ir.builder import BITS, I8, Fn, V
from dhlo.codegen.target import LINE_BYTES

__all__ = ["Sharing"]

# Tiles that don't fetch: the first, which packs and waits for its own lines.
_OTHER_TILES: Final = 1
# Steps of k in which a tile fetches one line are 2 to the power of this at most.
_MOST_SHIFT: Final = 5


@dataclass(frozen=True)
class Sharing:
    """A panel's lines of each unit of k, fetched by `lines` times 2^shift tiles behind the first one, as memory delivers them in
    the time of several: each fetches one of the lines, of one part in 2^shift of the units. Unless it `shares`, the first tile
    fetches them all.
    """

    fn: Fn
    shares: V
    lines: int
    shift: V
    units: V  # of a tile

    @classmethod
    def of(cls, fn: Fn, elem: str, spec: TileSpec, row_panels: V, units: V) -> Sharing:
        """Of so many tiles below each other, and units of k."""
        lines = max(spec.panel(elem) * BITS[elem] * depth(elem) // (8 * LINE_BYTES), 1)
        shift = fn.i64(0)
        for x in range(1, _MOST_SHIFT + 1):
            shift = fn.select(fn.cmp("ge", row_panels, (lines << x) + _OTHER_TILES), x, shift)
        shares = fn.cmp("ge", row_panels, SHARING_PANELS)
        return cls(fn, shares, lines, shift, fn.add(fn.shr(fn.sub(fn.max(units, 1), 1), shift), 1))

    def share(self, i: V, later: V, step: V) -> tuple[V, V, V]:
        """Whether the tile i fetches of what is at `later`, `step` bytes on for each unit, where it begins, and the shift."""
        fn, lines = self.fn, self.lines
        tiles = fn.select(self.shares, fn.shl(fn.i64(lines), self.shift), 1)
        i = fn.select(self.shares, fn.sub(i, 1), i)
        fetches = fn.cmp("ult", i, tiles)  # not the first, whose number wraps
        begins = fn.add(fn.mul(fn.mul(fn.divu(i, lines), self.units), step), fn.mul(fn.remu(i, lines), LINE_BYTES))
        return fetches, fn.gep(later, fn.select(self.shares, begins, 0), I8), fn.select(fetches, self.shift, 0)
