"""Views of the same elements, joins and repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv, PythonMod

from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import movement as mv
from dhlo.ir.ops.elementwise import Add
from dhlo.ir.symbols import as_expr


# ---------------------------------------------------------------------------------------------------- shapes
@lowers(A.view.default, A.reshape.default, A._unsafe_view.default, A._reshape_alias.default, A.view_copy.default)
def _reshape(b: OpBuilder, x: Value, shape: Sequence[Any], *_: Any) -> Value:
    return b.reshape(x, shape)


@lowers(A.view_as.default, A.reshape_as.default)
def _view_as(b: OpBuilder, x: Value, other: Value) -> Value:
    return b.reshape(x, b.shape(other))


@lowers(A.flatten.using_ints)
def _flatten(b: OpBuilder, x: Value, start: int = 0, end: int = -1) -> Value:
    s = b.shape(x)
    if not s:
        return b.reshape(x, [1])
    lo, hi = b.dim(x, start), b.dim(x, end)
    return b.reshape(x, [*s[:lo], sympy.prod(s[lo : hi + 1]), *s[hi + 1 :]]) if hi > lo else x


@lowers(A.ravel.default)
def _ravel(b: OpBuilder, x: Value) -> Value:
    return b.reshape(x, [b.type(x).numel])


@lowers(A.unflatten.int)
def _unflatten(b: OpBuilder, x: Value, dim: int, sizes: Sequence[Any]) -> Value:
    s, d = b.shape(x), b.dim(x, dim)
    if any(v == -1 for v in sizes if isinstance(v, int)):
        rest: Any = sympy.prod([as_expr(v) for v in sizes if v != -1])
        q = s[d] / rest
        sizes = [(q if sympy.denom(q) == 1 else FloorDiv(s[d], rest)) if v == -1 else v for v in sizes]
    return b.reshape(x, [*s[:d], *sizes, *s[d + 1 :]])


@lowers(A.unsqueeze.default)
def _unsqueeze(b: OpBuilder, x: Value, dim: int) -> Value:
    return b.unsqueeze(x, dim)


@lowers(A.squeeze.default, A.squeeze.dim, A.squeeze.dims)
def _squeeze(b: OpBuilder, x: Value, dims: Any = None) -> Value:
    if isinstance(dims, list | tuple) and not dims:
        return x
    return b.squeeze(x, [d for d in b.dims_list(x, dims) if b.rank(x) and b.dims.size(b.shape(x)[d]) == 1])


@lowers(A.expand.default, A.broadcast_to.default, A.expand_copy.default)
def _expand(b: OpBuilder, x: Value, shape: Sequence[Any], *, implicit: bool = False) -> Value:
    own = [as_expr(1)] * (len(shape) - b.rank(x)) + b.shape(x)
    return b.expand(x, [o if isinstance(s, int) and s == -1 else s for s, o in zip(shape, own, strict=True)])


@lowers(A.expand_as.default)
def _expand_as(b: OpBuilder, x: Value, other: Value) -> Value:
    return b.expand(x, b.shape(other))


@lowers(A.permute.default, A.permute_copy.default)
def _permute(b: OpBuilder, x: Value, perm: Sequence[int]) -> Value:
    return b.transpose(x, [b.dim(x, p) for p in perm])


@lowers(A.transpose.int, A.swapaxes.default, A.swapdims.default, A.transpose_copy.int)
def _transpose(b: OpBuilder, x: Value, d0: int, d1: int) -> Value:
    return b.swap(x, d0, d1)


@lowers(A.t.default)
def _t(b: OpBuilder, x: Value) -> Value:
    return b.swap(x, 0, 1) if b.rank(x) == 2 else x


@lowers(A.mT.default, A.adjoint.default)
def _mt(b: OpBuilder, x: Value) -> Value:
    return b.swap(x, -1, -2)


@lowers(A.numpy_T.default)
def _numpy_t(b: OpBuilder, x: Value) -> Value:
    return b.transpose(x, list(reversed(range(b.rank(x)))))


@lowers(A.movedim.intlist, A.movedim.int, A.moveaxis.intlist, A.moveaxis.int)
def _movedim(b: OpBuilder, x: Value, src: Any, dst: Any) -> Value:
    return b.transpose(x, moved(b, x, src, dst))


def moved(b: OpBuilder, x: Value, src: Any, dst: Any) -> list[int]:
    """The permutation of aten.movedim."""
    sources, targets = b.dims_list(x, src), b.dims_list(x, dst)
    rest = [d for d in range(b.rank(x)) if d not in sources]
    return [sources[targets.index(d)] if d in targets else rest.pop(0) for d in range(b.rank(x))]


# ---------------------------------------------------------------------------------------------------- joins and repeats
@lowers(A.cat.default, A.concat.default, A.concatenate.default)
def cat(b: OpBuilder, xs: Sequence[Value], dim: int = 0) -> Value:
    """aten.cat, which leaves out tensors of shape [0] and promotes dtypes."""
    d = b.result_type(*xs)
    kept = [x for x in xs if not (b.rank(x) == 1 and b.shape(x)[0] == 0)] or [xs[0]]
    return b.concat([b.convert(x, d) for x in kept], b.dim(kept[0], dim))


@lowers(A.stack.default)
def _stack(b: OpBuilder, xs: Sequence[Value], dim: int = 0) -> Value:
    d = b.result_type(*xs)
    at = dim if dim >= 0 else dim + b.rank(xs[0]) + 1
    return b.concat([b.unsqueeze(b.convert(x, d), at) for x in xs], at)


@lowers(A.hstack.default)
def _hstack(b: OpBuilder, xs: Sequence[Value]) -> Value:
    return cat(b, [b.reshape(x, [1]) if b.rank(x) == 0 else x for x in xs], 0 if b.rank(xs[0]) < 2 else 1)


@lowers(A.vstack.default)
def _vstack(b: OpBuilder, xs: Sequence[Value]) -> Value:
    return cat(b, [b.reshape(x, [1, b.type(x).numel]) if b.rank(x) < 2 else x for x in xs], 0)


@lowers(A.repeat.default, A.tile.default)
def _repeat(b: OpBuilder, x: Value, times: Sequence[Any]) -> Value:
    times = [1] * (b.rank(x) - len(times)) + list(times)
    own = [as_expr(1)] * (len(times) - b.rank(x)) + b.shape(x)
    wide: list[Any] = []
    at: list[int] = []
    for r, s in zip(times, own, strict=True):
        if as_expr(r) != 1 and s != 1:
            wide.append(r)
        at.append(len(wide))
        wide.append(r if s == 1 else s)
    y = b.expand(b.reshape(x, own), wide, at)
    return b.reshape(y, [as_expr(r) * s for r, s in zip(times, own, strict=True)])


@lowers(A.repeat_interleave.self_int)
def _repeat_interleave(b: OpBuilder, x: Value, times: Any, dim: int | None = None, *, output_size: Any = None) -> Value:
    if dim is None:
        x, dim = b.reshape(x, [b.type(x).numel]), 0
    d, s = b.dim(x, dim), b.shape(x)
    wide = [*s[: d + 1], as_expr(times), *s[d + 1 :]]
    y = b.expand(x, wide, [i for i in range(len(wide)) if i != d + 1])
    return b.reshape(y, [*s[:d], s[d] * as_expr(times), *s[d + 1 :]])


@lowers(A.flip.default)
def _flip(b: OpBuilder, x: Value, dims: Sequence[int]) -> Value:
    return b.op(mv.Reverse, [x], {"dims": sorted(b.dim(x, d) for d in dims)}) if dims else x


@lowers(A.roll.default)
def _roll(b: OpBuilder, x: Value, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Value:
    if not dims:
        return b.reshape(_roll(b, b.reshape(x, [b.type(x).numel]), shifts, [0]), b.shape(x))
    for shift, dim in zip(shifts, dims, strict=True):
        d = b.dim(x, dim)
        n = b.shape(x)[d]
        if n == 0 or as_expr(shift) == 0:
            continue
        cut = PythonMod(-as_expr(shift), n if n.is_positive or n.is_number else sympy.Max(n, 1))
        x = b.concat([b.slice(x, d, cut, n - cut), b.slice(x, d, 0, cut)], d)
    return x


@lowers(A.sum_to_size.default)
def _sum_to_size(b: OpBuilder, x: Value, size: Sequence[Any]) -> Value:
    more = b.rank(x) - len(size)
    dims = [d for d, s in enumerate(b.shape(x)) if d < more or (size[d - more] == 1 and s != 1)]
    if dims or not size:  # as a sum, of integers in i64; to no dims always
        x = b.reduce(x if b.dtype(x).is_float else b.convert(x, "i64"), "sum", dims, keepdim=True)
    return b.reshape(x, size)


@lowers(A.cartesian_prod.default)
def _cartesian_prod(b: OpBuilder, xs: Sequence[Value]) -> Value:
    if len(xs) == 1:
        return xs[0]
    shape = [b.shape(x)[0] for x in xs]
    n = sympy.prod(shape)
    columns = [b.reshape(b.expand(x, shape, [d]), [n, 1]) for d, x in enumerate(xs)]
    return b.concat(columns, 1)


@lowers(A.broadcast_tensors.default)
def _broadcast_tensors(b: OpBuilder, xs: Sequence[Value]) -> list[Value]:
    shape = b.broadcast_shape(*[b.shape(x) for x in xs])
    return [b.expand(x, shape) for x in xs]


@lowers(A.pixel_shuffle.default)
def _pixel_shuffle(b: OpBuilder, x: Value, r: int) -> Value:
    *lead, c, h, w = b.shape(x)
    n = len(lead)
    y = b.reshape(x, [*lead, c / r**2, r, r, h, w])
    y = b.transpose(y, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return b.reshape(y, [*lead, c / r**2, h * r, w * r])


@lowers(A.pixel_unshuffle.default)
def _pixel_unshuffle(b: OpBuilder, x: Value, r: int) -> Value:
    *lead, c, h, w = b.shape(x)
    n, hr, wr = len(lead), FloorDiv(h, r), FloorDiv(w, r)
    y = b.reshape(x, [*lead, c, hr, r, wr, r])
    return b.reshape(b.transpose(y, [*range(n), n, n + 2, n + 4, n + 1, n + 3]), [*lead, c * r * r, hr, wr])


@lowers(A.channel_shuffle.default)
def _channel_shuffle(b: OpBuilder, x: Value, groups: int) -> Value:
    n, c, *rest = b.shape(x)
    y = b.swap(b.reshape(x, [n, groups, c / groups, *rest]), 1, 2)
    return b.reshape(y, [n, c, *rest])


@lowers(A.unfold.default)
def _unfold(b: OpBuilder, x: Value, dim: int, size: int, step: int) -> Value:
    if b.rank(x) == 0:
        return b.slice(b.reshape(x, [1]), 0, 0, size)
    d = b.dim(x, dim)
    count = FloorDiv(b.shape(x)[d] - size, step) + 1
    y = b.take(x, [window_index(b, count, size, step)], [d], d)
    return b.transpose(y, [*[i for i in range(b.rank(y)) if i != d + 1], d + 1])


def window_index(b: OpBuilder, count: Any, size: int, step: int) -> Value:
    """Places [count, size] of the elements of windows."""
    return b.op(Add, [b.iota([count, size], 0, "i64", step=step), b.iota([count, size], 1, "i64")])
