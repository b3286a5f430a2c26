"""Running combinations of groups."""

from __future__ import annotations

from dhlo.codegen.families.family import KernelFamily
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import anchor_of
from dhlo.codegen.families.scan.scan import lower_scan
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.compute import Scan

__all__ = ["ScanFamily"]


class ScanFamily(KernelFamily):
    """Running sums, products and extremes."""

    anchor = Kind.OPAQUE.value
    ops = (Scan,)

    def lower(self) -> Launch:
        return lower_scan(self.low, self.group, anchor_of(self.group, Kind.OPAQUE))
