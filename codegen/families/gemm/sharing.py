"""How tiles below each other share the fetching of the rows of B that come next, where these are packed as they are read."""

from __future__ import annotations

from dataclasses import dataclass

from dhlo.codegen.families.gemm.microkernel import FETCH_BITS, SHARING_PANELS
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import Fn, V
from dhlo.codegen.target import LINE_BYTES

__all__ = ["Sharing"]


@dataclass(frozen=True)
class Sharing:
    """The lines of the next panel's rows, which a block's tiles fetch evenly while they multiply this one: memory takes the time
    of several to deliver them. Unless it `shares`, the first tile fetches them all.
    """

    fn: Fn
    shares: V
    pace: V  # lines that each unit of k fetches, in parts of 2^FETCH_BITS
    each: V  # the same, of a tile
    per_panel: int  # tiles side by side

    @classmethod
    def of(cls, fn: Fn, elem: str, spec: TileSpec, row_panels: V, units: V) -> Sharing:
        """Of so many row panels, and units of k."""
        lines = max(spec.row_bytes(elem) // LINE_BYTES, 1)
        pace = fn.divu(fn.i64(lines << FETCH_BITS), fn.mul(row_panels, spec.per_panel))
        return cls(fn, fn.cmp("ge", row_panels, SHARING_PANELS), pace, fn.mul(pace, units), spec.per_panel)

    def share(self, i: V) -> tuple[V, V]:
        """Where in the panel's lines the first tile of the row panel i begins, and its pace."""
        return self.fn.mul(i, self.fn.mul(self.each, self.per_panel)), self.pace
