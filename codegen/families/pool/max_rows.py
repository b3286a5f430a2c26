"""Maxima over windows, first down the columns of an output row's windows, then along them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dhlo.codegen.families.pool.rows import PoolRows, store_value
from dhlo.codegen.kernel_ir.builder import BITS, KernelModule, V, vec
from dhlo.codegen.kernel_ir.values import FLOATS

if TYPE_CHECKING:
    from dhlo.codegen.families.pool.pool import Pool

__all__ = ["MOST_REACH", "MaxRows", "scratch_bytes"]

# Rows and columns of a window up to which maxima are one straight line of code; columns of the input that are computed at once; the
# largest stride for which vectors of outputs are shuffled out of vectors of inputs.
_UNROLL, _COLUMNS, _MOST_STRIDE = 16, 4096, 4

MOST_REACH = 4096
"""How far windows of floats reach along a row, at most, as the scratch holds the columns of one."""


class _Block:
    """How the columns of a block of outputs lie in a worker's scratch: room for a vector, then column after column."""

    def __init__(self, pool: Pool, lanes: int) -> None:
        stride, reach = pool.stride[-1], (pool.kernel[-1] - 1) * pool.dilation[-1]
        self.wide = stride <= _MOST_STRIDE
        step = lanes if self.wide else 1  # outputs at once
        self.outputs = max(1, _COLUMNS // stride // step) * step
        self.front = lanes
        self.elements = lanes + (self.outputs - 1) * stride + reach + step * stride * self.wide + lanes


def scratch_bytes(pool: Pool, acc: str, lanes: int) -> int:
    """Scratch of a worker, for maxima in the type `acc`."""
    return _Block(pool, lanes).elements * BITS[acc] // 8


class MaxRows(PoolRows):
    """Each column's maximum over the rows of the windows is kept in the scratch, with what lies outside of the image on either
    side, so that windows are inside. Nothing is masked but the last elements that a worker stores."""

    def __init__(self, pool: Pool, module: KernelModule) -> None:
        super().__init__(pool, module)
        least = 0 if pool.unsigned else -(1 << BITS[self.acc] - 1)
        self.other = float("-inf") if self.acc in FLOATS else least
        self.block = _Block(pool, self.lanes)

    def row(self, plane: V, z: V, y: V, at: V) -> None:
        f = self.f
        lo, hi = zip(*(self.inside(origin, d) for d, origin in enumerate((z, y))), strict=True)
        base = f.add(f.mul(f.add(f.mul(z, self.sizes[1]), y), self.sizes[2]), plane)  # of the window's first row
        with f.loop(0, self.outs[2], self.block.outputs) as lp:
            n = f.min(f.sub(self.outs[2], lp.iv), self.block.outputs)
            first = f.sub(f.mul(lp.iv, self.stride[2]), self.padding[2])
            reach = f.add(f.mul(f.sub(n, 1), self.stride[2]), (self.kernel[2] - 1) * self.dilation[2] + 1)
            end = f.add(first, reach)
            some = f.and_(f.cmp("lt", lo[0], hi[0]), f.cmp("lt", lo[1], hi[1]))
            # Columns begin .. stop of the image, none of them if there are no rows.
            begin = f.select(some, f.min(f.max(first, 0), end), end)
            stop = f.max(f.min(end, self.sizes[2]), begin)
            self.down(base, lo, hi, begin, stop, first)
            self.outside(f.sub(begin, first), f.sub(stop, first), reach)
            self.along(n, f.add(at, lp.iv))

    def inside(self, origin: V, d: int) -> tuple[V, V]:
        """Of windows that start at `origin` in dim `d`, which points lie in the image."""
        f, dilation = self.f, self.dilation[d]
        lo = f.divu(f.add(f.max(f.neg(origin), 0), dilation - 1), dilation)
        left = f.max(f.sub(self.sizes[d], origin), 0)
        return lo, f.min(f.divu(f.add(left, dilation - 1), dilation), self.kernel[d])

    def at(self, column: V) -> V:
        """Where a column of the block lies in the scratch."""
        return self.f.gep(self.f.args[4], self.f.add(column, self.block.front), self.acc)

    def down(self, base: V, lo: Sequence[V], hi: Sequence[V], begin: V, stop: V, first: V) -> None:
        """The maxima of the columns begin .. stop, over rows of the windows from lo up to hi. The last whole vector ends with the
        last column, in the rows before if need be, unless memory starts later."""
        f, lanes = self.f, self.lanes
        whole = f.add(begin, f.and_(f.sub(stop, begin), -lanes))
        rows = self.rows(base, lo, hi)

        def maxima(column: V, lanes: int) -> None:
            f.store(self.maximum(rows, column, lanes), self.at(f.sub(column, first)))

        with f.loop(begin, whole, lanes) as lp:
            maxima(lp.iv, lanes)

        def last() -> list[V]:
            maxima(f.sub(stop, lanes), lanes)
            return []

        def few() -> list[V]:
            with f.loop(whole, stop) as lp:
                maxima(lp.iv, 0)
            return []

        with f.when(f.cmp("lt", whole, stop)):
            f.if_else(f.cmp("ge", f.add(rows.first, stop), lanes), last, few, [])

    def rows(self, base: V, lo: Sequence[V], hi: Sequence[V]) -> _RowsOfWindow:
        f = self.f
        steps = [f.mul(f.mul(self.sizes[1], self.sizes[2]), self.dilation[0]), f.mul(self.sizes[2], self.dilation[1])]
        return _RowsOfWindow(base, steps, lo, hi, self)

    def maximum(self, rows: _RowsOfWindow, column: V, lanes: int) -> V:
        return rows.fold(lambda best, row: self.larger(best, self.load(self.f.add(row, column), lanes)))

    def load(self, element: V, lanes: int) -> V:
        """A vector of x, or one element, as maxima are computed."""
        f, elem = self.f, self.pool.elem
        stored = "i16" if elem != self.acc else elem
        value = f.load(f.gep(self.x, element, stored), vec(stored, lanes) if lanes else stored)
        return value if elem == self.acc else f.cast(f.bitcast(value, elem), self.acc)

    def larger(self, best: V | None, value: V) -> V:
        if best is None:
            return value
        return self.f.maxu(best, value) if self.pool.unsigned else self.f.max(best, value)

    def outside(self, begin: V, stop: V, reach: V) -> None:
        """Fills the block's columns before `begin`, the last first, and from `stop` on, up to `reach`."""
        f, lanes = self.f, self.lanes
        other = f.const(self.other, vec(self.acc, lanes))
        with f.loop(0, begin, lanes) as lp:
            f.store(other, self.at(f.sub(f.sub(begin, lp.iv), lanes)))
        with f.loop(stop, reach, lanes) as lp:
            f.store(other, self.at(lp.iv))

    def along(self, n: V, at: V) -> None:
        """Maxima of `n` windows to the output's elements from `at` on. Whole vectors go beyond the row, where later ones of this
        worker's lie."""
        f, stride, elem = self.f, self.stride[2], self.pool.elem
        left = f.sub(f.mul(self.end, self.outs[2]), at)
        wide = self.block.wide
        with f.loop(0, n, self.lanes if wide else 1) as lp:
            value = self.windows(f.mul(lp.iv, stride), self.lanes if wide else 0)
            to = f.gep(self.out, f.add(at, lp.iv), elem)
            if wide:
                store_value(f, value, to, f.sub(left, lp.iv), elem)
            else:
                f.store(value if elem == self.acc else f.bitcast(f.cast(value, elem), "i16"), to)

    def windows(self, column: V, lanes: int) -> V:
        """Of a vector of windows from `column` of the block on, or of one."""
        f, stride, dilation, kernel = self.f, self.stride[2], self.dilation[2], self.kernel[2]

        def point(offset: V | int, place: int) -> V:
            p = self.at(f.add(column, offset))
            if not lanes:
                return f.load(p, self.acc)
            x = f.load(p, vec(self.acc, lanes * stride))
            return x if stride == 1 else f.shuffle(x, x, range(place, lanes * stride, stride))

        if kernel <= _UNROLL:
            best: V | None = None
            for k in range(kernel):
                on, place = divmod(k * dilation, stride) if lanes else (k * dilation, 0)
                best = self.larger(best, point(on * stride if lanes else on, place))
            assert best is not None
            return best
        with f.loop(1, kernel, 1, [point(0, 0)]) as lp:
            lp.yield_(self.larger(lp.carried[0], point(f.mul(lp.iv, dilation), 0)))
        return lp.results[0]


class _RowsOfWindow:
    """The rows of the windows of an output row that lie in the image, as the elements of x before their first columns."""

    def __init__(self, base: V, steps: Sequence[V], lo: Sequence[V], hi: Sequence[V], of: MaxRows) -> None:
        self.f, self.base, self.steps, self.lo, self.hi = of.f, base, steps, lo, hi
        self.first = self.row(lo[0], lo[1])
        planes, rows = of.kernel[:2]
        few = planes * rows <= _UNROLL
        # Those outside of the image are others again, which changes no maximum.
        self.held = [self.row(self.near(z, 0), self.near(y, 1)) for z in range(planes) for y in range(rows)] if few else []

    def row(self, z: V, y: V) -> V:
        f = self.f
        return f.add(self.base, f.add(f.mul(z, self.steps[0]), f.mul(y, self.steps[1])))

    def near(self, point: int, d: int) -> V:
        """The nearest point inside."""
        f = self.f
        return f.max(f.min(f.i64(point), f.sub(self.hi[d], 1)), self.lo[d])

    def fold(self, step: Callable[[V | None, V], V]) -> V:
        """Takes in row after row, with None for what there is before."""
        if self.held:
            best: V | None = None
            for row in self.held:
                best = step(best, row)
            assert best is not None
            return best
        f = self.f
        with f.loop(self.lo[0], self.hi[0], 1, [step(None, self.first)]) as planes:
            with f.loop(self.lo[1], self.hi[1], 1, planes.carried) as rows:
                rows.yield_(step(rows.carried[0], self.row(planes.iv, rows.iv)))
            planes.yield_(rows.results[0])
        return planes.results[0]
