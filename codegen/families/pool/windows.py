"""Pooling point by point of the windows: averages, and maxima with their indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dhlo.codegen.families.pool.rows import PoolRows, load_float, store_value
from dhlo.codegen.kernel_ir.builder import BITS, F32, I1, I32, I64, KernelModule, V, vec

if TYPE_CHECKING:
    from dhlo.codegen.families.pool.pool import Pool

__all__ = ["Windows"]

# Window points up to which the reduction is one straight line of code.
_UNROLL = 27


class Windows(PoolRows):
    """Lanes hold a window each, and take in its points one after the other; those outside of the image are masked."""

    def __init__(self, pool: Pool, module: KernelModule) -> None:
        super().__init__(pool, module)
        self.points = self.kernel[0] * self.kernel[1] * self.kernel[2]
        self.other = float("-inf") if pool.kind == "max" else 0.0
        self.span = 2 * self.lanes if self.stride[2] == 2 else self.lanes
        self.steps = self.f.dense([i * (1 if self.span > self.lanes else self.stride[2]) for i in range(self.span)], I32)

    def row(self, plane: V, z: V, y: V, at: V) -> None:
        f, elem = self.f, self.pool.elem
        src = f.gep(self.x, plane, elem)
        with f.loop(0, self.outs[2], self.lanes) as chunk:
            origin = (z, y, f.sub(f.mul(chunk.iv, self.stride[2]), self.padding[2]))
            value, index = self.window(src, origin)
            left = f.sub(self.outs[2], chunk.iv)
            to = f.add(at, chunk.iv)
            store_value(f, self.divide(value, origin), f.gep(self.out, to, elem), left, elem)
            if self.pool.indices:
                f.store_first(f.cast(index, I64), f.gep(self.indices, to, I64), left)

    def window(self, src: V, origin: tuple[V, V, V]) -> tuple[V, V]:
        """The windows whose first lane starts at `origin` reduced to a value and, for max, the index of it."""
        f = self.f
        acc_ty, index_ty = vec(self.acc, self.lanes), vec(I32, self.lanes)
        start = [f.const(self.other, acc_ty), self.first_index(origin) if self.pool.indices else f.const(0, index_ty)]
        reach = self.span - 1 if self.span > self.lanes else (self.lanes - 1) * self.stride[2]
        interior = f.cmp("ge", f.min(f.min(origin[0], origin[1]), origin[2]), 0)
        for d, size in enumerate(self.sizes):
            last = (self.kernel[d] - 1) * self.dilation[d] + (reach if d == 2 else 0)
            interior = f.and_(interior, f.cmp("lt", f.add(origin[d], last), size))
        types = [acc_ty, index_ty]
        value, index = f.if_else(
            interior,
            lambda: self.points_of(start, lambda s, k: self.point(src, origin, s, k, False)),
            lambda: self.points_of(start, lambda s, k: self.point(src, origin, s, k, True)),
            types,
        )
        return value, index

    def points_of(self, start: Sequence[V], step: Callable[[Sequence[V], Sequence[V | int]], Sequence[V]]) -> Sequence[V]:
        """Folds `step` over the window's points in order, unrolled if there are few."""
        f, k = self.f, self.kernel
        state = list(start)
        if self.points <= _UNROLL:
            for number in range(self.points):
                plane, column = divmod(number, k[2])
                state = list(step(state, (*divmod(plane, k[1]), column)))
            return state
        with f.loop(0, self.points, 1, state) as lp:
            row = f.divu(lp.iv, k[2])
            lp.yield_(*step(lp.carried, (f.divu(row, k[1]), f.remu(row, k[1]), f.remu(lp.iv, k[2]))))
        return lp.results

    def point(self, src: V, origin: tuple[V, V, V], state: Sequence[V], k: Sequence[V | int], masked: bool) -> Sequence[V]:
        """One window point of every lane."""
        f = self.f
        c = [f.add(o, f.mul(k[d], self.dilation[d])) for d, o in enumerate(origin)]
        if masked:
            inside = f.and_(f.cmp("ult", c[0], self.sizes[0]), f.cmp("ult", c[1], self.sizes[1]))
            # A column limit of 0 masks every lane where the row is outside.
            limit = f.splat(f.cast(f.select(inside, self.sizes[2], 0), I32), self.span)
            mask = f.cmp("ult", f.add(self.steps, f.cast(c[2], I32)), limit)
        else:
            mask = f.const(1, vec(I1, self.span))
        offset = f.add(f.mul(f.add(f.mul(c[0], self.sizes[1]), c[1]), self.sizes[2]), c[2])
        value = self.load(f.gep(src, offset, self.pool.elem), mask)
        if self.pool.kind == "avg":
            return [f.add(state[0], value), state[1]]
        take = f.or_(f.cmp("gt", value, state[0]), f.cmp("uno", value, value))
        index = f.add(f.splat(f.cast(offset, I32), self.lanes), f.dense([i * self.stride[2] for i in range(self.lanes)], I32))
        return [f.select(take, value, state[0]), f.select(take, index, state[1])]

    def load(self, p: V, mask: V) -> V:
        """Every stride-th element from p on; for stride 2 `mask` is per element of two vectors."""
        f, lanes, elem, step = self.f, self.lanes, self.pool.elem, self.stride[2]
        if step == 1:
            return load_float(f, p, mask, self.other, elem)
        if step == 2:
            low = load_float(f, p, f.shuffle(mask, mask, range(lanes)), self.other, elem)
            high = load_float(f, f.gep(p, lanes, elem), f.shuffle(mask, mask, range(lanes, 2 * lanes)), self.other, elem)
            return f.shuffle(low, high, range(0, 2 * lanes, 2))
        pointers = f.gep(p, self.steps, elem)
        if BITS[elem] >= 32:
            return f.gather(pointers, mask, f.const(self.other, vec(elem, lanes)))
        bits = f.gather(pointers, mask, f.const(0, vec("i16", lanes)))
        return f.select(mask, f.cast(f.bitcast(bits, elem), F32), f.const(self.other, vec(F32, lanes)))

    def first_index(self, origin: tuple[V, V, V]) -> V:
        """Index of the window's first point inside of the plane: what PyTorch reports if nothing exceeds -inf."""
        f, starts = self.f, []
        for d in range(2):
            # ceil(-origin / dilation) points lie before the plane.
            skipped = f.max(f.floordiv(f.add(f.neg(origin[d]), self.dilation[d] - 1), self.dilation[d]), 0)
            starts.append(f.add(origin[d], f.mul(skipped, self.dilation[d])))
        d = self.dilation[2]
        x = f.add(f.splat(f.cast(origin[2], I32), self.lanes), f.dense([i * self.stride[2] for i in range(self.lanes)], I32))
        before = f.max(f.add(f.neg(x), d - 1), 0)
        x = f.add(x, f.mul(f.divu(before, d), d))
        row = f.mul(f.add(f.mul(starts[0], self.sizes[1]), starts[1]), self.sizes[2])
        return f.add(x, f.splat(f.cast(row, I32), self.lanes))

    def divide(self, value: V, origin: tuple[V, V, V]) -> V:
        """Sums to averages."""
        pool, f = self.pool, self.f
        if pool.kind == "max":
            return value
        if pool.divisor_override is not None:
            return f.div(value, float(pool.divisor_override))
        rows = f.i64(1)
        for d in range(2):
            rows = f.mul(rows, self.extent(origin[d], self.sizes[d], d))
        x = f.add(f.splat(f.cast(origin[2], I32), self.lanes), f.dense([i * self.stride[2] for i in range(self.lanes)], I32))
        columns = self.extent(x, f.splat(f.cast(self.sizes[2], I32), self.lanes), 2)
        return f.div(value, f.mul(f.cast(columns, self.acc), f.splat(f.cast(rows, self.acc), self.lanes)))

    def extent(self, start: V, size: V, d: int) -> V:
        """Length of the window in a dim, counting padding or not, but nothing beyond the padding."""
        f = self.f
        end = f.min(f.add(start, self.kernel[d]), f.add(size, self.padding[d]))
        if not self.pool.count_include_pad:
            start, end = f.max(start, 0), f.min(end, size)
        return f.sub(end, start)
