"""State of packed sequences, taken on token by token."""

from __future__ import annotations

from collections.abc import Sequence

from dhlo.codegen.families.copy.flat import copy_launch
from dhlo.codegen.families.family import KernelFamily
from dhlo.codegen.families.kernel import Launch, where
from dhlo.codegen.families.lowering import Lowering, anchor_of
from dhlo.codegen.families.recurrence.recurrence import lower_recurrence
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind
from dhlo.ir.memory import is_written_over
from dhlo.ir.ops.compute import Reduce
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.recurrence import Recurrence
from dhlo.ir.types import from_mlir

__all__ = ["RecurrenceFamily"]


class RecurrenceFamily(KernelFamily):
    """The states copied to the result, unless that is their own memory; then taken on there."""

    anchor = Kind.OPAQUE.value
    ops = (Recurrence,)

    def __init__(self, low: Lowering, group: Group) -> None:
        """Raises CompileError for bodies of other ops than reductions and those whose elements are computed on demand."""
        super().__init__(low, group)
        self.op = anchor_of(group, Kind.OPAQUE)
        for op in list(self.op.regions[0].blocks[0].operations)[:-1]:
            if not op.kind.pullable and not isinstance(op, Reduce):
                raise CompileError(f"{op.OPERATION_NAME} in a recurrence has no kernel yet", where=where(op))
        self.view = low.view(group, self.op.operands[0])

    def lower(self) -> Launch:
        return lower_recurrence(self.low, self.group, self.op)

    def launches(self) -> Sequence[Launch]:
        yields = list(list(self.group.operation.regions[0].blocks[0].operations)[-1].operands)
        states = self.group.results[yields.index(self.op.results[0])]
        if is_written_over(states):
            return [self.launch]
        return [copy_launch(self.low.module, self.view, states, from_mlir(states).bytes), self.launch]
