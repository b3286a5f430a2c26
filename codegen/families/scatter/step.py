"""Writes by index or place onto a copy of the operand, or onto the operand itself."""

from __future__ import annotations

from collections.abc import Sequence

from dhlo.codegen.families.copy.flat import copy_launch
from dhlo.codegen.families.family import KernelFamily
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import Lowering, anchor_of
from dhlo.codegen.families.scatter.scatter import lower_scatter
from dhlo.codegen.families.scatter.update_slice import lower_update_slice
from dhlo.ir.dialect import Kind
from dhlo.ir.memory import is_written_over
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.lookup import Scatter, UpdateSlice
from dhlo.ir.types import from_mlir

__all__ = ["WriteFamily"]


class WriteFamily(KernelFamily):
    """The operand copied to the result, unless that is the operand's own memory; then the source combined into it."""

    anchor = Kind.OPAQUE.value
    ops = (Scatter, UpdateSlice)

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        self.op = anchor_of(group, Kind.OPAQUE)
        self.view, self.bytes = low.view(group, self.op.operands[0]), from_mlir(self.op.results[0]).bytes

    def lower(self) -> Launch:
        lower = lower_scatter if isinstance(self.op, Scatter) else lower_update_slice
        return lower(self.low, self.group, self.op)

    def launches(self) -> Sequence[Launch]:
        result = self.group.results[0]
        if is_written_over(result):
            return [self.launch]
        return [copy_launch(self.low.module, self.view, result, self.bytes), self.launch]
