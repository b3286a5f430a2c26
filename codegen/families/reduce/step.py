"""Reduction groups, whole or in parts; positions of extremes."""

from __future__ import annotations

import sympy

from dhlo.codegen.families.family import Family, LaunchFamily, launch
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import GroupHost, anchor_of
from dhlo.codegen.families.reduce.argreduce import lower_argreduce
from dhlo.codegen.families.reduce.reduction import MAX_SPLIT, lower_reduction
from dhlo.codegen.kernel_ir.builder import V
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.compute import ArgReduce
from dhlo.ir.symbols import least

__all__ = ["ArgReduceFamily", "ReductionFamily"]


class ReductionFamily(Family):
    """Reductions: in one launch; or, where they have few items and much to do for each, in parts that are then gathered."""

    anchor = Kind.REDUCTION.value

    def emit_kernels(self) -> None:
        low, group = self.low, self.group
        self.whole, self.split = low.once(group, "kernel", lambda: lower_reduction(low.module, group, low.checks))
        if self.split is not None:
            self.workspace = least(self.whole.count, sympy.Integer(MAX_SPLIT)) * self.split.parts * self.split.cell_bytes

    def emit_launch(self, host: GroupHost) -> None:
        if self.split is None:
            launch(host, self.whole)
            return
        fn, workspace = host.fn, host.workspace()
        launches = [
            (x, [host.slot(s) for s in x.slots], host.size(x.count), host.size(x.grain), host.size(x.scratch))
            for x in (self.whole, self.split.partial, self.split.gather)
        ]  # sizes stand outside of branches

        def part(k: int, *first: V) -> None:
            x, slots, count, grain, scratch = launches[k]
            host.launch(x.kernel, [*first, *slots], count, grain, scratch)

        def apart() -> list[V]:
            part(1, workspace)
            part(2, workspace)
            return []

        def at_once() -> list[V]:
            part(0)
            return []

        few = fn.cmp("le", launches[0][2], MAX_SPLIT)
        fn.if_else(fn.and_(few, fn.cmp("ge", host.size(self.split.parts), 2)), apart, at_once, [])


class ArgReduceFamily(LaunchFamily):
    """The position of the largest or smallest element."""

    anchor = Kind.OPAQUE.value
    ops = (ArgReduce,)

    def lower(self) -> Launch:
        return lower_argreduce(self.low, self.group, anchor_of(self.group, Kind.OPAQUE))
