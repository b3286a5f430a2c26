"""Writes by index or place onto a copy of the operand, or onto the operand itself."""

from __future__ import annotations

from dhlo.codegen.families.copy.flat import emit_copy
from dhlo.codegen.families.family import Family, launch
from dhlo.codegen.families.lowering import GroupHost, anchor_of, view_pointer
from dhlo.codegen.families.scatter.scatter import lower_scatter
from dhlo.codegen.families.scatter.update_slice import lower_update_slice
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.lookup import Scatter, UpdateSlice
from dhlo.ir.types import from_mlir

__all__ = ["WriteFamily"]


class WriteFamily(Family):
    """The operand copied to the result, unless that is the operand's own memory; then the source combined into it."""

    anchor = Kind.OPAQUE.value
    ops = (Scatter, UpdateSlice)

    def emit_kernels(self) -> None:
        low, group = self.low, self.group
        op = anchor_of(group, Kind.OPAQUE)
        lower = lower_scatter if isinstance(op, Scatter) else lower_update_slice
        self.x, self.result = low.view(group, op.operands[0]), group.results[0]
        self.bytes = from_mlir(op.results[0]).bytes
        self.writes = low.once(group, "kernel", lambda: lower(low, group, op))

    def emit_launch(self, host: GroupHost) -> None:
        if not host.is_written_over(self.result):
            emit_copy(host, view_pointer(host, self.x), host.pointer(self.result), host.size(self.bytes))
        launch(host, self.writes)
