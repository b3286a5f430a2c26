"""Max and average pooling (aten.max_pool*d_with_indices, aten.avg_pool*d), vectorised along the row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from dhlo.codegen.families.box import grain_of
from dhlo.codegen.kernel_ir.builder import BITS, F32, F64, I1, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import HostContext, kernel_fn, load_args

__all__ = ["Pool", "load_float", "store_float"]

_POINT_WORK = 2  # simple operations that a point of a window takes: it is read and taken in
# Window points up to which the reduction is one straight line of code.
_UNROLL = 27
Triple = tuple[int, int, int]


def load_float(f: Fn, p: V, mask: V, other: float, elem: str) -> V:
    """A masked load of f16, bf16, f32 or f64 elements, f32 if narrower; `other` in the lanes not loaded."""
    lanes = mask.lanes
    if BITS[elem] >= 32:
        return f.masked_load(p, mask, f.const(other, vec(elem, lanes)))
    bits = f.masked_load(p, mask, f.const(0, vec("i16", lanes)))
    return f.select(mask, f.cast(f.bitcast(bits, elem), F32), f.const(other, vec(F32, lanes)))


def store_float(f: Fn, x: V, p: V, n: V, elem: str) -> None:
    """Stores the first `n` lanes of a vector of f32 or f64, rounded to `elem`."""
    f.store_first(x if BITS[elem] >= 32 else f.bitcast(f.cast(x, elem), "i16"), p, n)


def accumulator(elem: str) -> str:
    """The element type that values of `elem` are reduced in."""
    return F64 if elem == F64 else F32


def triple(values: Sequence[int], fill: int) -> Triple:
    """Three entries, leading ones filled."""
    a, b, c = (fill,) * (3 - len(values)) + tuple(values)
    return a, b, c


@dataclass(frozen=True)
class Pool:
    """A pooling over 1 to 3 spatial dims. `kind` is max or avg; `elem` f16, bf16, f32 or f64 (reduced in f32 or f64).

    Padding is -inf for max; avg divides by `divisor_override`, or by the window's size with or without its padding as
    `count_include_pad` says. A NaN in a window is its maximum. `indices` (max only): i64 positions in the plane as in
    PyTorch.
    """

    kind: str
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool = field(default=False, repr=False)  # how `output_size` rounds; kernels are told the size
    count_include_pad: bool = True
    divisor_override: int | None = None
    indices: bool = False
    elem: str = F32

    def __post_init__(self) -> None:
        if self.kind not in ("max", "avg") or (self.indices and self.kind != "max"):
            raise ValueError("kind is max (with or without indices) or avg")
        if len({len(self.kernel), len(self.stride), len(self.padding), len(self.dilation)}) != 1 or len(self.kernel) > 3:
            raise ValueError("kernel, stride, padding and dilation need the same 1 to 3 entries")

    @property
    def name(self) -> str:
        """The kernel's symbol; equal parameters give equal names."""
        key = hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        return f"pool_{self.kind}_{self.elem}_{'x'.join(map(str, self.kernel))}_{key}"

    def output_size(self, spatial: Sequence[Any]) -> list[Any]:
        """Output sizes of the spatial dims; ints or sympy expressions."""
        out = []
        for n, k, s, p, d in zip(spatial, self.kernel, self.stride, self.padding, self.dilation, strict=True):
            room = n + 2 * p - d * (k - 1) - 1
            if self.ceil_mode:
                # The last window must start inside of the input or its left padding.
                most, inside = (room + s - 1) // s + 1, (n + p - 1) // s + 1
                out.append(min(most, inside) if isinstance(n, int) else sympy.Min(most, inside))
            else:
                out.append(room // s + 1)
        return out

    def emit_kernels(self, module: KernelModule) -> None:
        """Adds the kernel to the module, once."""
        if self.name not in module.functions:
            _PoolKernel(self, module).emit()

    def emit_launch(
        self,
        host: HostContext,
        *,
        x: V,
        out: V,
        planes: V,
        spatial: Sequence[V],
        out_spatial: Sequence[V],
        indices: V | None = None,
    ) -> None:
        """Pools `planes` dense planes of sizes `spatial` at x to `out` (and i64 `indices`) of sizes `out_spatial`, if that is not
        empty."""
        f, ones = host.fn, [host.fn.i64(1)] * (3 - len(spatial))
        sizes, outs = [*ones, *spatial], [*ones, *out_spatial]
        count = f.mul(f.mul(planes, outs[0]), outs[1])
        points = 1
        for k in self.kernel:
            points *= k
        with f.when(f.cmp("gt", f.mul(count, outs[2]), 0)):
            grain = grain_of(host, f.mul(outs[2], points * _POINT_WORK))
            pointers = [x, out, *([indices] if self.indices and indices is not None else [out])]
            host.launch(self.name, [*pointers, *sizes, *outs], count, grain)


class _PoolKernel:
    """Emits one kernel; items are output rows (plane, z, y)."""

    def __init__(self, pool: Pool, module: KernelModule) -> None:
        self.pool = pool
        self.acc = accumulator(pool.elem)
        self.lanes = module.target.lanes(self.acc)
        self.kernel, self.stride = triple(pool.kernel, 1), triple(pool.stride, 1)
        self.padding, self.dilation = triple(pool.padding, 0), triple(pool.dilation, 1)
        self.points = self.kernel[0] * self.kernel[1] * self.kernel[2]
        self.other = float("-inf") if pool.kind == "max" else 0.0
        self.span = 2 * self.lanes if self.stride[2] == 2 else self.lanes
        self.f = kernel_fn(module, pool.name)
        self.steps = self.f.dense([i * (1 if self.span > self.lanes else self.stride[2]) for i in range(self.span)], I32)

    def emit(self) -> None:
        f = self.f
        x, out, indices, *sizes = load_args(f, [PTR] * 3 + [I64] * 6)
        self.sizes, outs = sizes[:3], sizes[3:]
        plane_size = f.mul(f.mul(sizes[0], sizes[1]), sizes[2])
        _, begin, end, *_ = f.args
        with f.loop(begin, end) as items:
            rest = f.divu(items.iv, outs[1])
            oy = f.sub(items.iv, f.mul(rest, outs[1]))
            plane = f.divu(rest, outs[0])
            oz = f.sub(rest, f.mul(plane, outs[0]))
            src = f.gep(x, f.mul(plane, plane_size), self.pool.elem)
            row = f.mul(items.iv, outs[2])
            z, y = (f.sub(f.mul(o, self.stride[d]), self.padding[d]) for d, o in enumerate((oz, oy)))
            with f.loop(0, outs[2], self.lanes) as chunk:
                origin = (z, y, f.sub(f.mul(chunk.iv, self.stride[2]), self.padding[2]))
                value, index = self.window(src, origin)
                left = f.sub(outs[2], chunk.iv)
                at = f.add(row, chunk.iv)
                store_float(f, self.divide(value, origin), f.gep(out, at, self.pool.elem), left, self.pool.elem)
                if self.pool.indices:
                    f.store_first(f.cast(index, I64), f.gep(indices, at, I64), left)
        f.done()

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
        if not self.pool.indices:
            return [f.select(take, value, state[0]), state[1]]
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
