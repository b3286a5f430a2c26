"""Maxima, their positions, and means of windows of regions."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.families.vision.regions import Regions
from dhlo.codegen.kernel_ir.builder import I32, I64, V
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.vision import LEAST
from dhlo.ir.types import DTYPES

__all__ = ["lower_roi_pool"]


class _Pool(Regions):
    """Parts of a cell are its value, behind its position where that is asked for."""

    def __init__(self, low: Lowering, group: Group, op: Op) -> None:
        super().__init__(low, group, op)
        self.how = attr(op, "how")
        if self.how == "argmax":
            self.parts = (self.elem, I32)
        least = float("-inf") if self.x.dtype.name == "f16" else LEAST
        self.least = self.fn.const(0.0 if self.how == "mean" else least, self.fn.vec(self.elem))
        self.nowhere = self.fn.const(-1, self.fn.vec(I32))
        self.windows = [self.operand(2), self.operand(3)]
        self.bounds = [self.room(2 * c, I64) for c in self.cells]
        self.most = sympy.floor(self.spatial[1] / self.fn.lanes) + 2
        self.turned_rows(self.most)

    def prepare(self, region: V) -> None:
        fn = self.fn
        self.image, self.there = self.image_of(self.load(self.operand(1), DTYPES["i64"], Index(region)))
        ends = [fn.i64(1 << 62), fn.i64(0)]
        for d, n in enumerate((self.height, self.width)):
            first = fn.mul(region, 2 * self.cells[d])
            with fn.loop(0, self.cells[d], 1, ends) as lp:
                at = [fn.add(first, fn.add(fn.mul(lp.iv, 2), i)) for i in range(2)]
                lo, hi = (self.load(self.windows[d], DTYPES["i64"], Index(i)) for i in at)
                lo = fn.max(lo, 0)
                hi = fn.max(fn.select(self.there, fn.min(hi, n), 0), lo)
                for i, v in enumerate((lo, hi)):
                    fn.store(v, fn.gep(self.bounds[d], fn.add(fn.mul(lp.iv, 2), i), I64))
                some = fn.cmp("lt", lo, hi)
                lp.yield_(
                    fn.select(some, fn.min(lo, lp.carried[0]), lp.carried[0]),
                    fn.select(some, fn.max(hi, lp.carried[1]), lp.carried[1]),
                )
            ends = [fn.i64(1 << 62), fn.i64(0)]
        self.left, self.right = lp.results

    def _window(self, d: int, cell: V) -> tuple[V, V]:
        fn = self.fn
        return self.number(self.bounds[d], fn.mul(cell, 2)), self.number(self.bounds[d], fn.add(fn.mul(cell, 2), 1))

    def _columns(self, column: V | None) -> tuple[V, V]:
        """The columns of which vectors are combined: of a cell, or of the region."""
        return (self.left, self.right) if column is None else self._window(1, column)

    def vectors(self, column: V | None) -> tuple[V, V]:
        fn = self.fn
        lo, hi = self._columns(column)
        self.origin = lo
        return fn.i64(0), fn.ceildivu(fn.max(fn.sub(hi, lo), 0), fn.lanes)

    def start_of(self, vector: V) -> V:
        return self.fn.add(self.origin, self.fn.mul(vector, self.fn.lanes))

    def combine_rows(self, row: V, start: V, at: Sequence[V]) -> list[list[V]]:
        fn, mask = self.fn, self.column_mask(start)
        lo, hi = self._window(0, row)
        init = [self.least] * fn.lanes + [self.nowhere] * (fn.lanes if len(self.parts) > 1 else 0)
        with fn.loop(lo, hi, 1, init) as lp:
            place = fn.add(fn.splat(fn.cast(fn.add(fn.mul(lp.iv, self.width), start), I32)), fn.iota(I32))
            known = [lp.carried[i :: fn.lanes] for i in range(fn.lanes)]
            new = [self._join(k, [self.image_row(p, lp.iv, start, mask), place]) for p, k in zip(at, known, strict=True)]
            lp.yield_(*(v for values in zip(*new, strict=True) for v in values))
        return [lp.results[i * fn.lanes : (i + 1) * fn.lanes] for i in range(len(self.parts))]

    def _join(self, known: Sequence[V], x: Sequence[V]) -> list[V]:
        """What is known of a window with what follows, of equals the first in rows."""
        fn = self.fn
        if self.how == "mean":
            return [fn.add(known[0], x[0])]
        more = fn.cmp("gt", x[0], known[0])
        if len(known) > 1:
            more = fn.or_(more, fn.and_(fn.cmp("eq", x[0], known[0]), fn.cmp("ult", x[1], known[1])))
            # nothing is equal to the least: its position stays -1, above all others without a sign
            more = fn.and_(more, fn.cmp("gt", x[0], self.least))
        return [fn.select(more, b, a) for a, b in zip(known, x, strict=False)]

    def combine_columns(self, row: V, column: V) -> V:
        fn = self.fn
        (top, bottom), (lo, hi) = self._window(0, row), self._window(1, column)
        origin = self._columns(column if self.sensitive else None)[0]
        init = [self.least, self.nowhere][: len(self.parts)]
        with fn.loop(lo, hi, 1, init) as lp:
            slot = fn.sub(lp.iv, origin)
            lp.yield_(*self._join(lp.carried, [self.turned_at(i, slot) for i in range(len(self.parts))]))
        if self.how == "argmax":
            return lp.results[1]
        area = fn.mul(fn.max(fn.sub(bottom, top), 0), fn.sub(hi, lo))
        value = lp.results[0]
        if self.how == "mean":
            value = fn.div(value, fn.splat(fn.cast(area, self.elem)))
        return fn.select(fn.splat(fn.cmp("gt", area, 0)), value, 0.0)


def lower_roi_pool(low: Lowering, group: Group, op: Op) -> Launch:
    """torchvision::roi_pool and ps_roi_pool."""
    return _Pool(low, group, op).lower("roi_pool")
