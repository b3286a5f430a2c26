"""Max pooling that also says where the largest elements are, and its reverse."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from dhlo.frontend.aten.convolution import adaptive_pool, many, pool
from dhlo.frontend.aten.indexing import scatter
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import compute
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import as_expr, product

Places = list[tuple[Value, Value]]  # of each spatial dim, for [windows, taps]: positions, and whether they count


def wanted(b: OpBuilder, result: int = 1) -> bool:
    """Does anybody read a result of the node being lowered?"""
    return any(u.target is not operator.getitem or (u.args[1] == result and u.users) for u in b.node.users)


def _indices(b: OpBuilder, x: Value, places: Places) -> Value:
    """Flat positions of the first largest element of each window, by looking at all elements of all windows."""
    n = len(places)
    first = b.rank(x) - n
    patches, low = x, float("-inf") if b.dtype(x).is_float else torch.iinfo(b.dtype(x).torch).min
    for k, (at, inside) in enumerate(places):  # [.., o0, k0, o1, k1, ..]
        d = first + 2 * k
        patches = b.take(patches, [b.minimum(b.maximum(at, 0), b.shape(x)[first + k] - 1)], [d], d)
        patches = b.select(b.expand(inside, b.shape(patches), [d, d + 1]), patches, low, dtype=b.dtype(x))
    windows = [first + 2 * k for k in range(n)]
    patches = b.transpose(patches, [*range(first), *windows, *(d + 1 for d in windows)])
    grid = b.shape(patches)[first:]
    out, taps = grid[:n], product(grid[n:])
    best = b.op(compute.ArgReduce, [b.reshape(patches, [*b.shape(patches)[: first + n], taps])], {"how": "max", "dim": first + n})
    flat = b.full(grid, 0, "i64")
    for k, (at, _) in enumerate(places):
        flat = b.add(b.mul(flat, b.shape(x)[first + k]), b.expand(at, grid, [k, n + k]))
    own = [b.iota(b.shape(best), first + k, "i64") for k in range(n)]
    return b.take(b.reshape(flat, [*out, taps]), [*own, best], list(range(n + 1)), 0)


def _register() -> None:
    def fixed(n: int) -> Any:
        def rule(
            b: OpBuilder,
            x: Value,
            window: Any,
            stride: Any = None,
            padding: Any = 0,
            dilation: Any = 1,
            ceil_mode: bool = False,
        ) -> list[Value]:
            values = pool(b, x, "max", n, window, stride, padding, dilation, ceil_mode)
            if not wanted(b):
                return [values, b.full(b.shape(values), 0, "i64")]
            window = many(window, n)
            steps = many(stride, n) if stride else window
            places: Places = []
            for k, (size, step, pad, gap) in enumerate(zip(window, steps, many(padding, n), many(dilation, n), strict=True)):
                grid = [b.shape(values)[k - n], size]
                at = b.add(b.iota(grid, 0, "i64", start=-pad, step=step), b.iota(grid, 1, "i64", step=gap))
                inside = b.ew(ew.And, b.ew(ew.Ge, at, 0), b.ew(ew.Lt, at, b.shape(x)[k - n]))
                places.append((at, inside))
            return [values, _indices(b, x, places)]

        return rule

    def adaptive(n: int) -> Any:
        def rule(b: OpBuilder, x: Value, size: Any) -> list[Value]:
            values = adaptive_pool(b, x, "max", n, size)
            if not wanted(b):
                return [values, b.full(b.shape(values), 0, "i64")]
            places: Places = []
            for own, m in zip(b.shape(x)[-n:], b.shape(values)[-n:], strict=True):
                grid = [m, FloorDiv(own + m - 1, m) + 1]  # room for the longest window
                i = b.iota(grid, 0, "i64")
                start = b.floordiv(b.mul(i, own), m)
                end = b.floordiv(b.add(b.mul(b.add(i, 1), own), m - 1), m)
                at = b.add(start, b.iota(grid, 1, "i64"))
                places.append((at, b.ew(ew.Lt, at, end)))
            return [values, _indices(b, x, places)]

        return rule

    def backward(n: int) -> Any:
        return lambda b, grad, x, *where: _placed(b, grad, where[-1], b.shape(x)[-n:], "add")

    for n in (2, 3):
        lowers(getattr(A, f"max_pool{n}d_with_indices_backward").default)(backward(n))
        lowers(getattr(A, f"adaptive_max_pool{n}d_backward").default)(backward(n))
        lowers(getattr(A, f"max_pool{n}d_with_indices").default)(fixed(n))
        lowers(getattr(A, f"adaptive_max_pool{n}d").default)(adaptive(n))
    lowers(A.adaptive_max_pool1d.default)(adaptive(1))


_register()


@lowers(A.fractional_max_pool2d.default, A.fractional_max_pool3d.default)
def _fractional_max_pool(b: OpBuilder, x: Value, window: Any, size: Sequence[Any], samples: Value) -> list[Value]:
    """Maxima of windows at random places: `samples` [N, C, n] in [0, 1) shift the windows of each plane and dim (in 2d, width
    comes first)."""
    n = len(size)
    window, first = many(window, n), b.rank(x) - n
    lead, spatial = b.shape(x)[:first], b.shape(x)[first:]
    if first == 1:  # an image without a batch takes the first of its samples
        samples = b.slice(samples, 0, 0, 1)
    samples = b.reshape(samples, [*lead, n])
    grid = [*lead, *map(as_expr, size), *window]
    at = []
    for k, (own, out, taps) in enumerate(zip(spatial, map(as_expr, size), window, strict=True)):
        b.require(sympy.Ge(own, out + taps - 1), "fractional_max_pool: the input is too small for the windows")
        sample = b.unsqueeze(b.pick(samples, first, n - 1 - k if n == 2 else k), first)
        alpha = b.div(b.full([], own - taps, b.dtype(samples)), b.full([], sympy.Max(out - 1, 1), b.dtype(samples)))
        i = b.iota([out], 0, "i64")
        moved = b.convert(b.mul(b.add(sample, b.convert(i, b.dtype(samples))), alpha), "i64")
        start = b.sub(moved, b.convert(b.mul(sample, alpha), "i64"))
        start = b.select(b.ew(ew.Eq, i, out - 1), own - taps, start)  # [*lead, out]
        start = b.reshape(start, [*lead, *[out if j == k else 1 for j in range(n)], *[1] * n])
        tap = b.reshape(b.iota([taps], 0, "i64"), [taps if j == k else 1 for j in range(n)])
        at.append(b.expand(b.add(start, tap), grid))
    planes = [b.iota(grid, k, "i64") for k in range(first)]
    whole, count = [*lead, *size], product([as_expr(t) for t in window])
    flat = b.full(grid, 0, "i64")
    for v, s in zip(at, spatial, strict=True):
        flat = b.add(b.mul(flat, s), v)
    patches = b.reshape(b.take(x, [*planes, *at], list(range(b.rank(x))), 0), [*whole, count])
    values = b.reduce(patches, "max", [len(whole)])
    best = b.op(compute.ArgReduce, [patches], {"how": "max", "dim": len(whole)})
    here = [b.iota(whole, k, "i64") for k in range(len(whole))]
    return [values, b.take(b.reshape(flat, [*whole, count]), [*here, best], list(range(len(whole) + 1)), 0)]


@lowers(A.max_unpool2d.default, A.max_unpool3d.default)
def _max_unpool(b: OpBuilder, x: Value, index: Value, size: Sequence[Any], *_: Any) -> Value:
    return _placed(b, x, index, size, "set")


def _placed(b: OpBuilder, x: Value, index: Value, size: Sequence[Any], how: str) -> Value:
    """Zeros, combined with x at the flat positions in the trailing dims, of sizes `size`, that `index` says."""
    lead, inner = b.shape(x)[: -len(size)], product(b.shape(x)[-len(size) :])
    flat = [*lead, inner]
    at = [b.iota(flat, d, "i64") for d in range(len(lead))]
    start = b.full([*lead, product([as_expr(s) for s in size])], 0, b.dtype(x))
    y = scatter(b, start, [*at, b.reshape(index, flat)], b.reshape(x, flat), list(range(len(flat))), 0, how)
    return b.reshape(y, [*lead, *size])
