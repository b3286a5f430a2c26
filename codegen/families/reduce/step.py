"""Reduction groups, whole or in parts; positions of extremes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from dhlo.codegen.families.box import grain_of
from dhlo.codegen.families.family import ChoiceFamily, KernelFamily
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import GroupHost, anchor_of
from dhlo.codegen.families.reduce.argreduce import lower_argreduce
from dhlo.codegen.families.reduce.kernels import MAX_SPLIT, Kernels, Turned, lower_reduction
from dhlo.codegen.kernel_ir.builder import V
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.compute import ArgReduce
from dhlo.ir.symbols import is_static, least

__all__ = ["ArgReduceFamily", "ReductionFamily"]


class ReductionFamily(ChoiceFamily):
    """Reductions: in one launch; or, where they have few items and much to do for each, in parts that are then gathered; where
    operands' memory runs along kept dims, by a kernel for that."""

    anchor = Kind.REDUCTION.value

    def emit_kernels(self) -> None:
        low = self.low
        made: Kernels = low.once(self.group, "kernel", lambda: lower_reduction(low.module, self.group, low.checks))
        self.whole, self.split, self.turned = made.whole, made.split, made.turned
        if self.split is not None:
            self.workspace = least(self.whole.count, sympy.Integer(MAX_SPLIT)) * self.split.parts * self.split.cell_bytes
        if self.turned is not None and is_static(self.turned.positions):
            if self.turned.positions >= self.turned.least:
                self.whole = self.turned.launch
            self.turned = None

    def launches(self) -> Sequence[Launch] | None:
        return [self.whole] if self.split is None and self.turned is None else None

    def emit_launch(self, host: GroupHost) -> None:
        if self.turned is not None:
            self._launch_turned(host, self.turned)
            return
        assert self.split is not None
        fn, split, workspace = host.fn, self.split, host.workspace()
        whole, partial, gather = (Sizes.of(host, x) for x in (self.whole, split.partial, split.gather))  # outside of branches

        def apart() -> list[V]:
            partial.launch(host, workspace)
            gather.launch(host, workspace)
            return []

        def at_once() -> list[V]:
            whole.launch(host)
            return []

        few = fn.cmp("le", whole.count, MAX_SPLIT)
        fn.if_else(fn.and_(few, fn.cmp("ge", host.size(split.parts), 2)), apart, at_once, [])

    def _launch_turned(self, host: GroupHost, turned: Turned) -> None:
        plain, other = Sizes.of(host, self.whole), Sizes.of(host, turned.launch)  # outside of branches
        many = host.fn.cmp("ge", host.size(turned.positions), turned.least)
        with host.fn.when(many):
            other.launch(host)
        with host.fn.when(host.fn.not_(many)):
            plain.launch(host)


@dataclass(frozen=True)
class Sizes:
    """A launch whose sizes are values of the host function."""

    kernel: str
    slots: list[V]
    count: V
    work: V
    scratch: V

    @staticmethod
    def of(host: GroupHost, x: Launch) -> Sizes:
        return Sizes(x.kernel, [host.slot(s) for s in x.slots], host.size(x.count), host.size(x.work), host.size(x.scratch))

    def launch(self, host: GroupHost, *first: V) -> None:
        """Launches with `first` before the kernel's other arguments."""
        host.launch(self.kernel, [*first, *self.slots], self.count, grain_of(host, self.work), self.scratch)


class ArgReduceFamily(KernelFamily):
    """The position of the largest or smallest element."""

    anchor = Kind.OPAQUE.value
    ops = (ArgReduce,)

    def lower(self) -> Launch:
        return lower_argreduce(self.low, self.group, anchor_of(self.group, Kind.OPAQUE))
