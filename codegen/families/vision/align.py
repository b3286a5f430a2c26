"""Means of bilinear samples in the cells of regions.

Samples of a cell stand on a grid, and bilinear weights are products: a cell is the sum of the image's rows by some weights, then
of columns by others. A row or column that several samples of a cell read comes once, so that memory and time depend on the image's
size, however many samples there are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.families.vision.regions import Regions
from dhlo.codegen.kernel_ir.builder import F64, I64, V
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.types import DTYPES

__all__ = ["lower_roi_align"]

_EPSILON = {"f16": 2.0**-10, "f32": 2.0**-23, "f64": sys.float_info.epsilon}
_BEFORE = 2  # places in a list before its first: what a list begins with is no row or column
_FIELDS, _NUMBERS = 5, 3  # of a region: places and counts
_NOWHERE = 1 << 62


class _Align(Regions):
    def __init__(self, low: Lowering, group: Group, op: Op) -> None:
        super().__init__(low, group, op)
        self.samples = attr(op, "samples")
        self.places, self.numbers = self.operand(1), self.operand(2)
        self.longest = [sympy.Max(2 * n, 2 * self.samples) + 4 + _BEFORE for n in self.spatial]  # lists of a cell
        self.at = [self.room(n * c, I64) for n, c in zip(self.longest, self.cells, strict=True)]
        self.weights = [self.room(n * c, self.elem) for n, c in zip(self.longest, self.cells, strict=True)]
        self.ends = [self.room(c, I64) for c in self.cells]
        # Each vector of columns begins a vector's length but one behind the last, or at a cell's first column.
        self.most = sympy.floor(self.spatial[1] / (self.fn.lanes - 1)) + 2 * self.cells[1] + 4
        self.starts, self.of_cell = self.room(self.most, I64), self.room(self.cells[1] + 1, I64)
        self.turned_rows(self.most)

    # ------------------------------------------------------------------ lists of rows and columns
    def rounded(self, x: V) -> V:
        """A number as the images' dtype has it."""
        return self.fn.cast(self.fn.cast(x, "f16"), self.elem) if self.x.dtype.name == "f16" else x

    def prepare(self, region: V) -> None:
        fn = self.fn
        first = fn.mul(region, _FIELDS)
        place = [self.load(self.places, self.x.dtype, Index(fn.add(first, i))) for i in range(_FIELDS)]
        count = [self.load(self.numbers, DTYPES["i64"], Index(fn.add(fn.mul(region, _NUMBERS), i))) for i in range(_NUMBERS)]
        self.image, self.there = self.image_of(count[0])
        self.divisor = fn.splat(place[4])
        for d in range(2):
            samples = fn.i64(self.samples) if self.samples else count[1 + d]
            self._list(d, place[d], place[2 + d], samples)

    def _list(self, d: int, start: V, size: V, samples: V) -> None:
        """The rows (d = 0) or columns of all cells, and their weights."""
        fn, longest = self.fn, self.size(self.longest[d])
        none = [fn.i64(-1), fn.i64(_NOWHERE)]  # the vector of columns at hand, and where it begins
        with fn.loop(0, self.cells[d], 1, none) as lp, self.em.scope():
            c = lp.iv
            base = self.rounded(fn.add(start, self.rounded(fn.mul(size, fn.cast(c, self.elem)))))
            lists = [fn.gep(self.at[d], fn.mul(c, longest), I64), fn.gep(self.weights[d], fn.mul(c, longest), self.elem)]
            for i in range(_BEFORE):
                fn.store(fn.i64(-1), fn.gep(lists[0], i, I64))
            vector, begin = lp.carried
            if d == 1:
                fn.store(fn.add(vector, 1), fn.gep(self.of_cell, c, I64))
                begin = fn.i64(_NOWHERE) if self.sensitive else begin
            lo, hi = self._reach(d, base, size, samples)
            with fn.loop(lo, hi, 1, [fn.i64(_BEFORE), vector, begin]) as each, self.em.scope():
                p = self.rounded(fn.mul(self.rounded(fn.add(fn.cast(each.iv, self.elem), 0.5)), size))
                p = self.rounded(fn.add(base, self.rounded(fn.div(p, self.rounded(fn.cast(samples, self.elem))))))
                each.yield_(*self._sample(d, p, fn.cmp("lt", size, 0.0), lists, each.carried))
            end, vector, begin = each.results
            fn.store(end, fn.gep(self.ends[d], c, I64))
            lp.yield_(vector, begin)
        if d == 1:
            fn.store(fn.add(lp.results[0], 1), fn.gep(self.of_cell, self.cells[1], I64))

    def _reach(self, d: int, base: V, size: V, samples: V) -> tuple[V, V]:
        """The samples among which are all that may be in the image, of a cell that may be far larger."""
        fn = self.fn
        base, size, n = (fn.cast(v, F64) for v in (base, size, (self.height, self.width)[d]))
        total = fn.cast(samples, F64)
        step = fn.div(size, total)
        lost = fn.mul(fn.add(fn.unary("fabs", base), fn.unary("fabs", size)), 8 * _EPSILON[self.x.dtype.name])
        ends = []
        for bound, sign in ((fn.sub(-1.0, fn.add(base, lost)), -2.0), (fn.add(fn.sub(n, base), lost), 2.0)):
            i = fn.add(fn.div(bound, step), sign)
            ends.append(fn.cast(fn.minnum(fn.maxnum(i, 0.0), fn.maxnum(total, 0.0)), I64))
        up = fn.cmp("gt", step, 0.0)
        return fn.select(up, ends[0], 0), fn.select(up, ends[1], samples)

    def _sample(self, d: int, p: V, down: V, lists: Sequence[V], carried: Sequence[V]) -> list[V]:
        """Adds a sample at p to the lists: the end of these, the vector of columns at hand, and where it begins."""
        fn, n = self.fn, (self.height, self.width)[d]
        inside = fn.and_(fn.cmp("ge", p, -1.0), fn.cmp("le", p, self.rounded(fn.cast(n, self.elem))))

        def add() -> list[V]:
            end, vector, begin = carried
            q = fn.select(fn.cmp("gt", p, 0.0), p, 0.0)
            last = fn.sub(n, 1)
            low = fn.min(fn.cast(q, I64), last)
            high = fn.min(fn.add(low, 1), last)
            part = fn.select(fn.cmp("lt", low, last), self.rounded(fn.sub(q, fn.cast(low, self.elem))), 0.0)
            if d == 1:
                vector, begin = self._vector(low, high, down, vector, begin)
                low, high = (fn.add(fn.mul(vector, fn.lanes), fn.sub(c, begin)) for c in (low, high))
            for at, weight in ((low, self.rounded(fn.sub(1.0, part))), (high, part)):
                end = self._append(d, lists, at, weight, end)
            return [end, vector, begin]

        return fn.if_else(fn.and_(inside, self.there), add, lambda: carried, [I64] * 3)

    def _vector(self, low: V, high: V, down: V, vector: V, begin: V) -> tuple[V, V]:
        """The vector that holds two columns: the one at hand, or the next."""
        fn, reach = self.fn, self.fn.lanes - 1
        held = fn.and_(fn.cmp("ge", low, begin), fn.cmp("le", high, fn.add(begin, reach)))
        begin = fn.select(held, begin, fn.select(down, fn.max(fn.sub(high, reach), 0), low))
        vector = fn.min(fn.select(held, vector, fn.add(vector, 1)), fn.sub(self.size(self.most), 1))
        fn.store(begin, fn.gep(self.starts, vector, I64))
        return vector, begin

    def _append(self, d: int, lists: Sequence[V], at: V, weight: V, end: V) -> V:
        """Adds a weight to one of the last two entries of a list, or as a new one; the list's end."""
        fn, (places, weights) = self.fn, lists
        where = end
        for back in (2, 1):
            i = fn.sub(end, back)
            where = fn.select(fn.cmp("eq", self.number(places, i), at), i, where)
        where = fn.min(where, fn.sub(self.size(self.longest[d]), 1))
        p = fn.gep(weights, where, self.elem)
        known = fn.cmp("lt", where, end)
        old = fn.if_else(known, lambda: [fn.load(p, self.elem)], lambda: [fn.const(0.0, self.elem)], [self.elem])[0]
        fn.store(fn.add(old, weight), p)
        fn.store(at, fn.gep(places, where, I64))
        return fn.max(end, fn.add(where, 1))

    # ------------------------------------------------------------------ sums
    def vectors(self, column: V | None) -> tuple[V, V]:
        if column is None:
            return self.fn.i64(0), self.number(self.of_cell, self.fn.i64(self.cells[1]))
        return self.number(self.of_cell, column), self.number(self.of_cell, self.fn.add(column, 1))

    def start_of(self, vector: V) -> V:
        return self.number(self.starts, vector)

    def _entries(self, d: int, cell: V) -> tuple[V, V, V]:
        """The lists of a cell, and where they end."""
        fn = self.fn
        first = fn.mul(cell, self.size(self.longest[d]))
        return fn.gep(self.at[d], first, I64), fn.gep(self.weights[d], first, self.elem), self.number(self.ends[d], cell)

    def combine_rows(self, row: V, start: V, at: Sequence[V]) -> list[list[V]]:
        fn, mask = self.fn, self.column_mask(start)
        rows, weights, end = self._entries(0, row)
        with fn.loop(_BEFORE, end, 1, [fn.const(0.0, fn.vec(self.elem))] * fn.lanes) as lp:
            r, w = self.number(rows, lp.iv), fn.splat(fn.load(fn.gep(weights, lp.iv, self.elem), self.elem))
            lp.yield_(*(fn.fma(self.image_row(p, r, start, mask), w, total) for p, total in zip(at, lp.carried, strict=True)))
        return [lp.results]

    def combine_columns(self, row: V, column: V) -> V:
        fn = self.fn
        slots, weights, end = self._entries(1, column)
        with fn.loop(_BEFORE, end, 1, [fn.const(0.0, fn.vec(self.elem))]) as lp:
            w = fn.splat(fn.load(fn.gep(weights, lp.iv, self.elem), self.elem))
            lp.yield_(fn.fma(self.turned_at(0, self.number(slots, lp.iv)), w, lp.carried[0]))
        return fn.div(lp.results[0], self.divisor)


def lower_roi_align(low: Lowering, group: Group, op: Op) -> Launch:
    """torchvision::roi_align and ps_roi_align."""
    return _Align(low, group, op).lower("roi_align")
