"""ATen ops that are short formulas of others: distances, products, and small conveniences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv

from dhlo.frontend.aten import (  # whose rules these are made of
    activation,  # noqa: F401
    elementwise,  # noqa: F401
    movement,
    parts,  # noqa: F401
)
from dhlo.frontend.aten.reduction import extreme
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import LOWERINGS, lowers
from dhlo.ir.ops import elementwise as ew


def _same_as(op: Any, *others: Any) -> None:
    """Registers other names of an op."""
    lowers(*others)(LOWERINGS[op])


_same_as(A.split.Tensor, A.unsafe_split.Tensor)
_same_as(A.chunk.default, A.unsafe_chunk.default)
_same_as(A.split_with_sizes.default, A.unsafe_split_with_sizes.default)
_same_as(A.narrow.default, A.narrow_copy.default)
_same_as(A.expm1.default, A.special_expm1.default)
_same_as(A.erf.default, A.special_erf.default)
_same_as(A.logit.default, A.special_logit.default)


# ---------------------------------------------------------------------------------------------------- elementwise
@lowers(A.rad2deg.default)
def _rad2deg(b: OpBuilder, x: Value) -> Value:
    return b.mul(x, 180 / math.pi)


@lowers(A.isneginf.default)
def _isneginf(b: OpBuilder, x: Value) -> Value:
    return b.ew(ew.Eq, x, -math.inf) if b.dtype(x).is_float else b.full(b.shape(x), False, "i1")


@lowers(A.isposinf.default)
def _isposinf(b: OpBuilder, x: Value) -> Value:
    return b.ew(ew.Eq, x, math.inf) if b.dtype(x).is_float else b.full(b.shape(x), False, "i1")


@lowers(A.heaviside.default)
def _heaviside(b: OpBuilder, x: Value, values: Value) -> Value:
    step = b.convert(b.ew(ew.Gt, x, 0), b.dtype(x))
    y = b.select(b.ew(ew.Eq, x, 0), values, step)
    return b.select(b.op(ew.IsNan, [x]), 0.0, y) if b.dtype(x).is_float else y


@lowers(A.sinc.default)
def _sinc(b: OpBuilder, x: Value) -> Value:
    def f(v: Value) -> Value:
        angle = b.mul(v, math.pi)
        return b.select(b.ew(ew.Eq, v, 0), 1.0, b.div(b.unary(ew.Sin, angle), angle))

    return b.in_f32(f, b.floating(x))


@lowers(A.logaddexp2.default)
def _logaddexp2(b: OpBuilder, x: Value, y: Value) -> Value:
    top = b.maximum(x, y)
    gap = b.op(ew.Neg, [b.op(ew.Abs, [b.sub(x, y)])])
    z = b.add(top, b.div(b.unary(ew.Log1p, b.unary(ew.Exp2, gap)), math.log(2)))
    return b.select(b.op(ew.IsInf, [top]), top, z)


@lowers(A.ldexp.Tensor)
def _ldexp(b: OpBuilder, x: Value, y: Value) -> Value:
    return b.mul(x, b.unary(ew.Exp2, y))


@lowers(A.isclose.default)
def _isclose(b: OpBuilder, x: Value, y: Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Value:
    same = b.ew(ew.Eq, x, y)
    if not b.dtype(x).is_float:
        x, y = b.convert(x, "f64"), b.convert(y, "f64")
    gap, room = b.op(ew.Abs, [b.sub(x, y)]), b.add(b.mul(b.op(ew.Abs, [y]), rtol), atol)
    close = b.ew(ew.And, b.ew(ew.Le, gap, room), b.ew(ew.Lt, gap, math.inf))
    if equal_nan:
        both = b.ew(ew.And, b.op(ew.IsNan, [x]), b.op(ew.IsNan, [y]))
        close = b.ew(ew.Or, close, both)
    return b.ew(ew.Or, same, close)


@lowers(A.isin.Tensor_Tensor)
def _isin(b: OpBuilder, x: Value, values: Value, *, assume_unique: bool = False, invert: bool = False) -> Value:
    line = b.reshape(values, [b.type(values).numel])
    hit = b.reduce(b.ew(ew.Eq, b.unsqueeze(x, b.rank(x)), line), "any", [b.rank(x)])
    return b.op(ew.Not, [hit]) if invert else hit


# ---------------------------------------------------------------------------------------------------- reductions
@lowers(A.aminmax.default)
def _aminmax(b: OpBuilder, x: Value, *, dim: int | None = None, keepdim: bool = False) -> list[Value]:
    return [extreme(b, x, how, dim, keepdim) for how in ("min", "max")]


@lowers(A.nansum.default)
def _nansum(b: OpBuilder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    clean = b.select(b.op(ew.IsNan, [x]), 0.0, x) if b.dtype(x).is_float else x
    return LOWERINGS[A.sum.dim_IntList](b, clean, dim, keepdim, dtype=dtype)


@lowers(A.nanmean.default)
def _nanmean(b: OpBuilder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    dims = b.dims_list(x, dim)
    there = b.convert(b.op(ew.Not, [b.op(ew.IsNan, [x])]), b.dtype(x))
    return b.div(_nansum(b, x, dim, keepdim, dtype=dtype), b.reduce(there, "sum", dims, keepdim))


@lowers(A.trace.default)
def _trace(b: OpBuilder, x: Value) -> Value:
    return LOWERINGS[A.sum.default](b, LOWERINGS[A.diagonal.default](b, x))


def _neighbours(b: OpBuilder, x: Value, d: int) -> tuple[Value, Value]:
    """All elements of a dim but the last, and all but the first."""
    n = b.dims.fold(sympy.Max(b.shape(x)[d] - 1, 0))
    return b.slice(x, d, 0, n), b.slice(x, d, b.shape(x)[d] - n, n)


@lowers(A.trapezoid.dx, A.trapz.dx)
def _trapezoid(b: OpBuilder, y: Value, dx: Any = 1, dim: int = -1) -> Value:
    d = b.dim(y, dim)
    return b.mul(b.reduce(b.mul(b.add(*_neighbours(b, y, d)), 0.5), "sum", [d]), dx)


@lowers(A.trapezoid.x, A.trapz.x)
def _trapezoid_at(b: OpBuilder, y: Value, x: Value, dim: int = -1) -> Value:
    """x has y's shape, or is one line along `dim`."""
    d = b.dim(y, dim)
    if b.rank(x) == 1:
        x = b.reshape(x, [b.shape(x)[0] if i == d else 1 for i in range(b.rank(y))])
    x = b.reshape(x, [*[1] * (b.rank(y) - b.rank(x)), *b.shape(x)])
    left, right = _neighbours(b, x, d)
    return b.reduce(b.mul(b.mul(b.sub(right, left), b.add(*_neighbours(b, y, d))), 0.5), "sum", [d])


# ---------------------------------------------------------------------------------------------------- products and
# distances
@lowers(A.addr.default)
def _addr(b: OpBuilder, c: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    d = b.result_type(c, x, y)
    outer = b.mul(b.unsqueeze(x, 1), b.unsqueeze(y, 0))
    outer = outer if alpha == 1 else b.mul(outer, alpha)
    if beta == 0:
        return b.convert(b.expand(outer, b.broadcast_shape(b.shape(outer), b.shape(c))), d)
    return b.convert(b.add(c if beta == 1 else b.mul(c, beta), outer), d)


@lowers(A.inner.default)
def _inner(b: OpBuilder, x: Value, y: Value) -> Value:
    if b.rank(x) == 0 or b.rank(y) == 0:
        return b.mul(x, y)
    return _tensordot(b, x, y, [b.rank(x) - 1], [b.rank(y) - 1])


@lowers(A.tensordot.default)
def _tensordot(b: OpBuilder, x: Value, y: Value, dims_x: Sequence[int], dims_y: Sequence[int]) -> Value:
    left, right = [b.dim(x, d) for d in dims_x], [b.dim(y, d) for d in dims_y]
    for i, j in zip(left, right, strict=True):  # a size of 1 is repeated, so that the other side is summed
        if b.shape(x)[i] == 1 and b.shape(y)[j] != 1:
            y = b.reduce(y, "sum", [j], keepdim=True)
        elif b.shape(y)[j] == 1 and b.shape(x)[i] != 1:
            x = b.reduce(x, "sum", [i], keepdim=True)
    keep_x = [d for d in range(b.rank(x)) if d not in left]
    keep_y = [d for d in range(b.rank(y)) if d not in right]
    sx, sy = b.shape(x), b.shape(y)
    inner = sympy.prod([b.dims.same(sx[i], sy[j]) for i, j in zip(left, right, strict=True)])
    a = b.reshape(b.transpose(x, [*keep_x, *left]), [sympy.prod([sx[d] for d in keep_x]), inner])
    c = b.reshape(b.transpose(y, [*right, *keep_y]), [inner, sympy.prod([sy[d] for d in keep_y])])
    return b.reshape(b.matmul(a, c), [*[sx[d] for d in keep_x], *[sy[d] for d in keep_y]])


@lowers(A.cosine_similarity.default)
def _cosine_similarity(b: OpBuilder, x: Value, y: Value, dim: int = 1, eps: float = 1e-8) -> Value:
    x, y = b.together(x, y)
    d = b.dims_list(x, dim)

    def unit(v: Value) -> Value:
        return b.div(v, b.maximum(b.unary(ew.Sqrt, b.reduce(b.mul(v, v), "sum", d, keepdim=True)), eps))

    return b.reduce(b.mul(unit(x), unit(y)), "sum", d)


@lowers(A.cdist.default, A._cdist_forward.default)
def _cdist(b: OpBuilder, x: Value, y: Value, p: float = 2.0, mode: Any = None) -> Value:
    gap = b.sub(b.unsqueeze(x, b.rank(x) - 1), b.unsqueeze(y, b.rank(y) - 2))
    return LOWERINGS[A.linalg_vector_norm.default](b, gap, p, [b.rank(gap) - 1])


@lowers(A._cdist_backward.default)
def _cdist_backward(b: OpBuilder, grad: Value, x: Value, y: Value, p: float, distance: Value) -> Value:
    """The gradient of x: along each gap, as much as it counts for the distance."""
    if p == 0:
        return b.full(b.shape(x), 0, b.dtype(x))
    gap = b.sub(b.unsqueeze(x, b.rank(x) - 1), b.unsqueeze(y, b.rank(y) - 2))
    grad, distance = (b.unsqueeze(v, b.rank(v)) for v in (grad, distance))
    size, sign = b.op(ew.Abs, [gap]), b.unary(ew.Sign, gap)
    if p == math.inf:
        share = b.mul(sign, b.convert(b.ew(ew.Eq, size, distance), b.dtype(x)))
    elif p == 1:
        share = sign
    else:  # the gap's part of the distance to the power of p - 1
        part = b.div(size, b.select(b.ew(ew.Eq, distance, 0.0), 1.0, distance))
        power = part if p == 2 else b.ew(ew.Pow, part, p - 1.0)
        share = b.mul(sign, b.select(b.ew(ew.Eq, size, 0.0), 0.0, power))
    return b.reduce(b.mul(share, grad), "sum", [b.rank(gap) - 2])


@lowers(A.pdist.default, A._pdist_forward.default)
def _pdist(b: OpBuilder, x: Value, p: float = 2.0) -> Value:
    """The distances of all pairs i < j of rows, by i and then j."""
    n = b.shape(x)[0]
    k, one = b.iota([FloorDiv(n * (n - 1), 2)], 0, "i64"), b.full([], n, "f64")
    half = b.sub(one, 0.5)  # row i begins at n i - i (i + 1) / 2, solved for i as ATen does
    root = b.unary(ew.Sqrt, b.sub(b.sub(b.mul(half, half), b.mul(b.convert(k, "f64"), 2.0)), 1.0))
    i = b.convert(b.sub(half, root), "i64")
    triangle = b.floordiv(b.mul(i, b.add(i, 1)), 2)
    j = b.add(b.add(b.sub(k, b.mul(i, n)), triangle), b.add(i, 1))
    gap = b.sub(b.take(x, [i], [0], 0), b.take(x, [j], [0], 0))
    return LOWERINGS[A.linalg_vector_norm.default](b, gap, p, [1])


@lowers(A.linalg_cross.default)
def _cross(b: OpBuilder, x: Value, y: Value, *, dim: int = -1) -> Value:
    x, y = b.together(x, y)
    d = b.dim(x, dim)

    def turn(v: Value, k: int) -> Value:
        return b.concat([b.slice(v, d, i % 3, 1) for i in (k, k + 1, k + 2)], d)

    return b.sub(b.mul(turn(x, 1), turn(y, 2)), b.mul(turn(x, 2), turn(y, 1)))


# ---------------------------------------------------------------------------------------------------- shapes
@lowers(A.fliplr.default)
def _fliplr(b: OpBuilder, x: Value) -> Value:
    return LOWERINGS[A.flip.default](b, x, [1])


@lowers(A.flipud.default)
def _flipud(b: OpBuilder, x: Value) -> Value:
    return LOWERINGS[A.flip.default](b, x, [0])


@lowers(A.rot90.default)
def _rot90(b: OpBuilder, x: Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> Value:
    flip = LOWERINGS[A.flip.default]
    turned = b.swap(x, *dims) if k % 2 else x
    if k % 4 == 1:
        return flip(b, turned, [dims[0]])
    if k % 4 == 2:
        return flip(b, turned, list(dims))
    return flip(b, turned, [dims[1]]) if k % 4 == 3 else x


@lowers(A.diag_embed.default)
def _diag_embed(b: OpBuilder, x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    rank = b.rank(x) + 1
    n = b.shape(x)[-1] + abs(offset)
    rows, cols = b.iota([n, n], 0, "i64"), b.iota([n, n], 1, "i64")
    lead, shape = [0] * (rank - 2), [*b.shape(x)[:-1], n, n]
    row = b.pad(x, [*lead, max(offset, 0)], [*lead, max(-offset, 0)], 0.0)  # each element in its column
    there = b.expand(b.ew(ew.Eq, b.sub(cols, rows), offset), shape, [rank - 2, rank - 1])
    y = b.select(there, b.expand(row, shape, [*range(rank - 2), rank - 1]), 0, dtype=b.dtype(x))
    return movement._movedim(b, y, [rank - 2, rank - 1], [dim1 % rank, dim2 % rank])


@lowers(A.diag.default)
def _diag(b: OpBuilder, x: Value, diagonal: int = 0) -> Value:
    if b.rank(x) == 1:
        return _diag_embed(b, x, diagonal)
    return LOWERINGS[A.diagonal.default](b, x, diagonal)


@lowers(A.column_stack.default)
def _column_stack(b: OpBuilder, xs: Sequence[Value]) -> Value:
    return movement.cat(b, [b.reshape(x, [b.type(x).numel, 1]) if b.rank(x) < 2 else x for x in xs], 1)


@lowers(A._trilinear.default)
def _trilinear(
    b: OpBuilder, x: Value, y: Value, z: Value, new_x: Any, new_y: Any, new_z: Any, summed: Sequence[int], unroll_dim: int = 1
) -> Value:
    """Product of three tensors, each with dims of size 1 inserted, summed along dims."""
    product: Value | None = None
    for v, new in ((x, new_x), (y, new_y), (z, new_z)):
        for d in sorted(new):
            v = b.unsqueeze(v, d)
        product = v if product is None else b.mul(product, v)
    return b.reduce(product, "sum", b.dims_list(product, summed)) if summed else product
