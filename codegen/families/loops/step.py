"""Groups of elementwise work."""

from __future__ import annotations

from dhlo.codegen.families.family import KernelFamily
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.loops.interleave import lower_interleave
from dhlo.codegen.families.loops.loops import lower_loops
from dhlo.codegen.families.lowering import anchor_of
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.complexes import Interleave

__all__ = ["LoopsFamily", "InterleaveFamily"]


class LoopsFamily(KernelFamily):
    """Elementwise work, views and constants."""

    anchor = "loops"

    def lower(self) -> Launch:
        return lower_loops(self.low.module, self.group, self.low.checks)


class InterleaveFamily(KernelFamily):
    """Complex numbers of their parts."""

    anchor = Kind.OPAQUE.value
    ops = (Interleave,)

    def lower(self) -> Launch:
        return lower_interleave(self.low, self.group, anchor_of(self.group, Kind.OPAQUE))
