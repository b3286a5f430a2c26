"""Writes by index or place onto a copy of the operand, or onto the operand itself."""

from __future__ import annotations

from typing import Any

from dhlo.codegen.families.copy.flat import emit_copy
from dhlo.codegen.families.family import LaunchFamily
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of, view_pointer
from dhlo.codegen.families.scatter.scatter import lower_scatter
from dhlo.codegen.families.scatter.update_slice import lower_update_slice
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.lookup import Scatter, UpdateSlice
from dhlo.ir.types import from_mlir

__all__ = ["WriteFamily"]


class WriteFamily(LaunchFamily):
    """The operand copied to the result, unless that is the operand's own memory; then the source combined into it."""

    anchor = Kind.OPAQUE.value
    ops = (Scatter, UpdateSlice)

    def __init__(self, low: Lowering, group: Any) -> None:
        super().__init__(low, group)
        self.op = anchor_of(group, Kind.OPAQUE)
        self.view, self.bytes = low.view(group, self.op.operands[0]), from_mlir(self.op.results[0]).bytes

    def lower(self) -> Launch:
        lower = lower_scatter if isinstance(self.op, Scatter) else lower_update_slice
        return lower(self.low, self.group, self.op)

    def emit_launch(self, host: GroupHost) -> None:
        result = self.group.results[0]
        if not host.is_written_over(result):
            emit_copy(host, view_pointer(host, self.view), host.pointer(result), host.size(self.bytes))
        super().emit_launch(host)
