"""Boxes, regions and samples of groups, each one launch."""

from __future__ import annotations

from dhlo.codegen.families.family import KernelFamily
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import anchor_of
from dhlo.codegen.families.vision.align import lower_roi_align
from dhlo.codegen.families.vision.columns import lower_sampled_columns
from dhlo.codegen.families.vision.planes import lower_sampled_planes
from dhlo.codegen.families.vision.pool import lower_roi_pool
from dhlo.codegen.families.vision.resample import lower_resampled_bytes
from dhlo.codegen.families.vision.suppress import lower_suppress
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.vision import ResampledBytes, RoiAlign, RoiPool, SampledColumns, SampledPlanes, Suppress

__all__ = ["VisionFamily"]

_KERNELS = {
    ResampledBytes: lower_resampled_bytes,
    RoiAlign: lower_roi_align,
    RoiPool: lower_roi_pool,
    SampledColumns: lower_sampled_columns,
    SampledPlanes: lower_sampled_planes,
    Suppress: lower_suppress,
}


class VisionFamily(KernelFamily):
    """What detectors compute of boxes, regions and places."""

    anchor = Kind.OPAQUE.value
    ops = tuple(_KERNELS)

    def lower(self) -> Launch:
        op = anchor_of(self.group, Kind.OPAQUE)
        return _KERNELS[type(op)](self.low, self.group, op)
