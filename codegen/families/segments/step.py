"""Reductions of runs of rows, as bags of a table's rows are."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.elementwise.rules import wrap
from dhlo.codegen.families.combine import across, combine, identity_of
from dhlo.codegen.families.family import KernelFamily
from dhlo.codegen.families.kernel import Launch, finish, rows
from dhlo.codegen.families.lines import OpKernel, lanes_at
from dhlo.codegen.families.lowering import anchor_of
from dhlo.codegen.kernel_ir.builder import V
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops.lookup import SegmentReduce
from dhlo.ir.symbols import is_static, product
from dhlo.ir.types import from_mlir

__all__ = ["SegmentFamily"]

_MOST = 8  # vectors of a row that are summed side by side, which are as many chains of additions
_ANY = 4  # the same of rows whose length isn't known


class SegmentFamily(KernelFamily):
    """Each segment's rows are computed one after the other, and combined in registers."""

    anchor = Kind.OPAQUE.value
    ops = (SegmentReduce,)

    def lower(self) -> Launch:
        k = OpKernel(self.low, self.group, anchor_of(self.group, Kind.OPAQUE))
        return _Segments(k).lower()


class _Segments:
    def __init__(self, k: OpKernel) -> None:
        self.k, self.fn, self.em = k, k.fn, k.em
        self.x, self.offsets = k.op.operands
        shape, self.out = from_mlir(self.x).shape, from_mlir(k.op.results[0]).shape
        self.lead = from_mlir(self.offsets).rank - 1
        self.n, self.row, self.dtype = shape[self.lead], shape[self.lead + 1 :], from_mlir(self.x).dtype
        self.how = attr(k.op, "how")

    def lower(self) -> Launch:
        k, em = self.k, self.em
        outer, width = self.out[: self.lead + 1], product(self.row)
        with rows(em, k.begin, k.end, outer) as at:
            lead, segment = at[:-1], at[-1]
            lo, hi = (self._end([*lead, i]) for i in (segment, em.offset(segment, 1)))
            to = em.times(em.flatten(at, outer), em.size(width))
            if width == 1:
                em.store(self._line(lead, lo, hi), k.result(0), self.dtype, to)
            else:
                self._rows(lead, lo, hi, to, k.size(width))
        return Launch(finish(k, "segments"), k.args.slots, product(outer), self.work, lookups=k.lookups)

    def _end(self, at: Sequence[Index]) -> V:
        x = self.em.value(self.offsets, at)  # of a join, the same number in all lanes
        return self.em.position(self.em.lookup(self.fn.extract(x, 0) if x.lanes else x, self.n + 1, self.k.op))

    @property
    def work(self) -> sympy.Expr:
        """Of a segment, as if all were equally long."""
        return sympy.Max(product(self.row) * sympy.floor(self.n / sympy.Max(self.out[self.lead], 1)), 1)

    def _line(self, lead: Sequence[Index], lo: V, hi: V) -> V:
        """What numbers of [lo, hi) give, vectors of them."""
        fn, em, start = self.fn, self.em, self.start()

        def step(i: V, carried: Sequence[V]) -> list[V]:
            x = em.value(self.x, [*lead, Index(i, 1), *[em.zero] * len(self.row)])
            x = x if x.lanes else fn.splat(x)
            return [self.joined(carried[0], x if em.mask is None else fn.select(em.mask, x, start))]

        return across(fn, self.how, lanes_at(self.k, lo, hi, [start], step)[0])

    def _rows(self, lead: Sequence[Index], lo: V, hi: V, to: Index, width: V) -> None:
        """Rows of [lo, hi), some vectors of their elements at a time."""
        fn, em = self.fn, self.em
        known = product(self.row)
        count = min(-(-int(known) // fn.lanes), _MOST) if is_static(known) else _ANY
        block = count * fn.lanes
        whole = fn.mul(fn.divu(width, block), block)

        def of(start: V, masks: Sequence[V | None]) -> None:
            with fn.loop(lo, hi, 1, [self.start() for _ in masks]) as lp, em.scope():
                found = []
                for v, mask in enumerate(masks):
                    column = Index(fn.add(start, v * fn.lanes), 1)
                    with em.scope(mask, partial=True) if mask is not None else em.scope():
                        x = em.value(self.x, [*lead, Index(lp.iv), *em.split(column, self.row)])
                    found.append(self.joined(lp.carried[v], x if x.lanes else fn.splat(x)))
                lp.yield_(*found)
            for v, (y, mask) in enumerate(zip(lp.results, masks, strict=True)):
                with em.scope(mask, partial=True) if mask is not None else em.scope():
                    em.store(y, self.k.result(0), self.dtype, em.plus(to, Index(fn.add(start, v * fn.lanes), 1)))

        with fn.loop(0, whole, block) as lp, em.scope():
            of(lp.iv, [None] * count)
        if not (is_static(known) and known % block == 0):
            with fn.when(fn.cmp("lt", whole, width)), em.scope():
                of(whole, [fn.tail_mask(fn.sub(width, fn.add(whole, v * fn.lanes))) for v in range(count)])

    def start(self) -> V:
        elem = "i1" if self.dtype.is_bool else self.dtype.register
        return self.fn.const(identity_of(self.how, self.dtype), self.fn.vec(elem))

    def joined(self, a: V, b: V) -> V:
        return wrap(self.fn, combine(self.fn, self.how, a, b), self.dtype.name)
