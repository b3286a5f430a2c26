"""Writes by index or place onto a copy of the operand, or onto the operand itself."""

from __future__ import annotations

from collections.abc import Sequence

from dhlo.codegen.families.copy.flat import copy_launch
from dhlo.codegen.families.family import KernelFamily
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import Lowering, anchor_of
from dhlo.codegen.families.scatter.scatter import lower_scatter, lower_start
from dhlo.codegen.families.scatter.update_slice import lower_update_slice
from dhlo.ir.dialect import Kind, defining
from dhlo.ir.memory import is_written_over
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.lookup import Scatter, UpdateSlice
from dhlo.ir.ops.movement import Full
from dhlo.ir.types import from_mlir

__all__ = ["WriteFamily"]


class WriteFamily(KernelFamily):
    """The operand copied to the result, unless that is the operand's own memory; then the source combined into it."""

    anchor = Kind.OPAQUE.value
    ops = (Scatter, UpdateSlice)

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        self.op = anchor_of(group, Kind.OPAQUE)
        x = self.op.operands[0]  # a constant is written where it is needed
        self.view = None if isinstance(defining(x), Full) else low.view(group, x)
        self.bytes = from_mlir(self.op.results[0]).bytes

    def lower(self) -> Launch:
        lower = lower_scatter if isinstance(self.op, Scatter) else lower_update_slice
        return lower(self.low, self.group, self.op)

    def emit_kernels(self) -> None:
        super().emit_kernels()
        if self.view is None:
            self.start = self.low.once(self.group, "start", lambda: lower_start(self.low, self.group, self.op))

    def launches(self) -> Sequence[Launch]:
        result = self.group.results[0]
        if is_written_over(result):
            return [self.launch]
        start = self.start if self.view is None else copy_launch(self.low.module, self.view, result, self.bytes)
        return [start, self.launch]
