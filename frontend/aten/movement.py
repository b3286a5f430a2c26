"""Views, joins and splits; and, for those that alias their argument, how a write through them changes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, PythonMod

from dhlo.errors import CompileError
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.registry import lowers, maybe_views, views
from dhlo.ops import movement as mv
from dhlo.shape_infer.symbols import as_expr

A: Any = torch.ops.aten
_LAST = 1 << 62  # an end beyond this means "to the end"


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
    return b.reshape(x, [*s[:lo], sympy.prod(s[lo:hi + 1]), *s[hi + 1:]]) if hi > lo else x


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
    return b.reshape(x, [*s[:d], *sizes, *s[d + 1:]])


@lowers(A.unsqueeze.default)
def _unsqueeze(b: OpBuilder, x: Value, dim: int) -> Value:
    return b.unsqueeze(x, dim)


@lowers(A.squeeze.default, A.squeeze.dim, A.squeeze.dims)
def _squeeze(b: OpBuilder, x: Value, dims: Any = None) -> Value:
    return b.squeeze(x, [d for d in b.dims_list(x, dims) if b.rank(x) and b.shape(x)[d] == 1])


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
    sources, targets = b.dims_list(x, src), b.dims_list(x, dst)
    rest = [d for d in range(b.rank(x)) if d not in sources]
    perm = [sources[targets.index(d)] if d in targets else rest.pop(0) for d in range(b.rank(x))]
    return b.transpose(x, perm)


# ---------------------------------------------------------------------------------------------------- parts
def position(b: OpBuilder, v: Any, n: sympy.Expr) -> sympy.Expr:
    """An index that counts from the end if it is negative."""
    e = as_expr(v)
    if e.is_number:
        return e if e >= 0 else e + n  # type: ignore[operator]
    if b.dims.nonnegative(e):
        return e
    if b.dims.nonnegative(-e - 1):
        return e + n
    if b.dims.nonnegative(-e):  # -m for an m that may be 0
        return sympy.Piecewise((e + n, e < 0), (e, True))
    return sympy.Piecewise((e, e >= 0), (e + n, True))


def slice_bounds(b: OpBuilder, n: sympy.Expr, start: Any, end: Any, step: int) -> tuple[sympy.Expr, sympy.Expr]:
    """(first index, number of elements) of a Python slice of n elements."""
    def clamp(v: Any) -> sympy.Expr:
        p = position(b, v, n)
        return p if p == n or p == 0 else sympy.Max(0, sympy.Min(p, n))
    first = as_expr(0) if start is None else b.size(clamp(start))
    last = n if end is None or (isinstance(end, int) and end >= _LAST) else b.size(clamp(end))
    size = b.size(sympy.Max(last - first, 0))
    return first, size if step == 1 else FloorDiv(size + step - 1, step)


@lowers(A.slice.Tensor, A.slice_copy.Tensor)
def _slice(b: OpBuilder, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    d = b.dim(x, dim)
    return b.slice(x, d, *slice_bounds(b, b.shape(x)[d], start, end, step), step)


@lowers(A.narrow.default)
def _narrow(b: OpBuilder, x: Value, dim: int, start: Any, length: Any) -> Value:
    d = b.dim(x, dim)
    first = position(b, start, b.shape(x)[d])
    b.require(sympy.Le(first + length, b.shape(x)[d]), "narrow reaches beyond the end")
    return b.slice(x, d, first, length)


@lowers(A.select.int, A.select_copy.int)
def _select(b: OpBuilder, x: Value, dim: int, index: Any) -> Value:
    d = b.dim(x, dim)
    return b.pick(x, d, element(b, b.shape(x)[d], index))


def element(b: OpBuilder, n: sympy.Expr, index: Any) -> sympy.Expr:
    """An index into n elements, which has to be in range."""
    at = position(b, index, n)
    b.require(sympy.And(sympy.Ge(at, 0), sympy.Lt(at, n)), f"index {index} is out of range")
    return at


def _count(b: OpBuilder) -> int:
    """How many results the node being lowered has."""
    return len(b.node.meta["val"])


def _split_bounds(b: OpBuilder, n: sympy.Expr, size: Any, count: int) -> list[tuple[Any, Any]]:
    size = as_expr(size)
    rest = b.size(n - size * (count - 1)) if count else n
    if count > 1 or not b.dims.equal(rest, size):
        b.require(sympy.Ge(rest, 0), "a split has more parts than elements")
        b.require(sympy.Le(rest, size), "a split leaves elements over")
    return [(size * i, rest if i == count - 1 else size) for i in range(count)]


@lowers(A.split.Tensor, A.split_copy.Tensor)
def _split(b: OpBuilder, x: Value, size: Any, dim: int = 0) -> list[Value]:
    d = b.dim(x, dim)
    return [b.slice(x, d, lo, n) for lo, n in _split_bounds(b, b.shape(x)[d], size, _count(b))]


@lowers(A.chunk.default)
def _chunk(b: OpBuilder, x: Value, chunks: int, dim: int = 0) -> list[Value]:
    d = b.dim(x, dim)
    n, count = b.shape(x)[d], _count(b)
    exact = sympy.expand(n / chunks)
    if count == chunks and all(c.as_coeff_Mul()[0].is_Integer for c in sympy.Add.make_args(exact)):
        return [b.slice(x, d, exact * i, exact) for i in range(chunks)]
    return [b.slice(x, d, lo, m) for lo, m in _split_bounds(b, n, FloorDiv(n + chunks - 1, chunks), count)]


@lowers(A.split_with_sizes.default, A.split.sizes, A.split_with_sizes_copy.default)
def _split_sizes(b: OpBuilder, x: Value, sizes: Sequence[Any], dim: int = 0) -> list[Value]:
    d, out, lo = b.dim(x, dim), [], as_expr(0)
    b.dims.same(b.shape(x)[d], sum((as_expr(s) for s in sizes), as_expr(0)))
    for s in sizes:
        out.append(b.slice(x, d, lo, s))
        lo = lo + as_expr(s)
    return out


@lowers(A.tensor_split.indices)
def _tensor_split(b: OpBuilder, x: Value, indices: Sequence[Any], dim: int = 0) -> list[Value]:
    d = b.dim(x, dim)
    edges = [0, *indices, None]
    return [_slice(b, x, d, lo, hi) for lo, hi in zip(edges, edges[1:], strict=False)]


@lowers(A.tensor_split.sections)
def _tensor_split_sections(b: OpBuilder, x: Value, sections: int, dim: int = 0) -> list[Value]:
    d, lo, out = b.dim(x, dim), as_expr(0), []
    n = b.shape(x)[d]
    for i in range(sections):
        size = FloorDiv(n + sections - 1 - i, sections)
        out.append(b.slice(x, d, lo, size))
        lo = lo + size
    return out


@lowers(A.unbind.int)
def _unbind(b: OpBuilder, x: Value, dim: int = 0) -> list[Value]:
    d, count = b.dim(x, dim), _count(b)
    b.dims.same(b.shape(x)[d], count)
    return [b.pick(x, d, i) for i in range(count)]


@lowers(A.diagonal.default)
def _diagonal(b: OpBuilder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    i, j = b.dim(x, dim1), b.dim(x, dim2)
    rows, cols = b.shape(x)[i] - max(-offset, 0), b.shape(x)[j] - max(offset, 0)
    n = b.size(sympy.Max(0, sympy.Min(rows, cols)))
    index = [b.iota([n], 0, "i64", start=max(-offset, 0)), b.iota([n], 0, "i64", start=max(offset, 0))]
    return b.take(x, index, [i, j], b.rank(x) - 2)


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
    wide = [*s[:d + 1], as_expr(times), *s[d + 1:]]
    y = b.expand(x, wide, [i for i in range(len(wide)) if i != d + 1])
    return b.reshape(y, [*s[:d], s[d] * as_expr(times), *s[d + 1:]])


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
    d = b.dim(x, dim)
    count = FloorDiv(b.shape(x)[d] - size, step) + 1
    index = b.op(_add(), [b.iota([count, size], 0, "i64", step=step), b.iota([count, size], 1, "i64")])
    y = b.take(x, [index], [d], d)
    return b.transpose(y, [*[i for i in range(b.rank(y)) if i != d + 1], d + 1])


def _add() -> Any:
    from dhlo.ops.elementwise import Add

    return Add


# ---------------------------------------------------------------------------------------------------- writes through views
def put_slice(b: OpBuilder, base: Value, new: Value, d: int, first: Any, size: Any, step: int = 1) -> Value:
    """`base` with part of a dim replaced."""
    n = b.shape(base)[d]
    shape = [size if i == d else s for i, s in enumerate(b.shape(base))]
    new = b.expand(b.convert(new, b.dtype(base)), shape)
    if step != 1:
        from dhlo.frontend.aten.indexing import scatter

        return scatter(b, base, [b.iota([size], 0, "i64", first, step)], new, [d], d, "set")
    first, size = as_expr(first), as_expr(size)
    if first == 0 and b.dims.equal(size, n):
        return new
    last = first + size
    parts = [b.slice(base, d, 0, first)] if first != 0 else []
    parts.append(new)
    if not b.dims.equal(last, n):
        parts.append(b.slice(base, d, last, n - last))
    y = b.concat(parts, d)
    return y if b.dims.equal(b.shape(y)[d], n) else b.reshape(y, b.shape(base))


@lowers(A.slice_scatter.default)
def _slice_scatter(b: OpBuilder, base: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    d = b.dim(base, dim)
    return put_slice(b, base, src, d, *slice_bounds(b, b.shape(base)[d], start, end, step), step)


@lowers(A.select_scatter.default)
def _select_scatter(b: OpBuilder, base: Value, src: Value, dim: int, index: Any) -> Value:
    d = b.dim(base, dim)
    return put_slice(b, base, b.unsqueeze(src, d), d, element(b, b.shape(base)[d], index), 1)


def _register_views() -> None:
    def same_elements(b: OpBuilder, base: Value, new: Value, out: int, *_: Any, **__: Any) -> Value:
        return b.convert(b.reshape(new, b.shape(base)), b.dtype(base))

    views(A.view.default, A.unsqueeze.default, A.squeeze.default, A.squeeze.dim, A.squeeze.dims, A.alias.default, A.detach.default,
          A.detach_.default, A.unflatten.int, A.view_as.default, A.lift_fresh.default)(same_elements)
    maybe_views(A.reshape.default, A.flatten.using_ints, A.contiguous.default, A.to.dtype, A.to.dtype_layout, A.to.device, A.to.other,
                A.type_as.default, A.dropout.default, A.ravel.default, A.reshape_as.default)(same_elements)

    def permuted(perm_of: Any) -> Any:
        def rule(b: OpBuilder, base: Value, new: Value, out: int, *args: Any) -> Value:
            perm = perm_of(b, base, *args)
            return b.transpose(new, [perm.index(i) for i in range(len(perm))])
        return rule

    def swapped(b: OpBuilder, base: Value, d0: int, d1: int) -> list[int]:
        perm = list(range(b.rank(base)))
        d0, d1 = b.dim(base, d0), b.dim(base, d1)
        perm[d0], perm[d1] = perm[d1], perm[d0]
        return perm

    views(A.permute.default)(permuted(lambda b, base, perm: [b.dim(base, p) for p in perm]))
    views(A.transpose.int, A.swapaxes.default)(permuted(swapped))
    views(A.t.default)(permuted(lambda b, base: list(reversed(range(b.rank(base))))))

    @views(A.slice.Tensor)
    def _(b: OpBuilder, base: Value, new: Value, out: int, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
        return _slice_scatter(b, base, new, dim, start, end, step)

    @views(A.narrow.default)
    def _(b: OpBuilder, base: Value, new: Value, out: int, dim: int, start: Any, length: Any) -> Value:
        d = b.dim(base, dim)
        return put_slice(b, base, new, d, position(b, start, b.shape(base)[d]), length)

    @views(A.select.int)
    def _(b: OpBuilder, base: Value, new: Value, out: int, dim: int, index: Any) -> Value:
        return _select_scatter(b, base, new, dim, index)

    @views(A.unbind.int)
    def _(b: OpBuilder, base: Value, new: Value, out: int, dim: int = 0) -> Value:
        return _select_scatter(b, base, new, dim, out)

    @views(A.split_with_sizes.default, A.split.sizes)
    def _(b: OpBuilder, base: Value, new: Value, out: int, sizes: Sequence[Any], dim: int = 0) -> Value:
        return put_slice(b, base, new, b.dim(base, dim), sum((as_expr(s) for s in sizes[:out]), as_expr(0)), sizes[out])

    @views(A.split.Tensor)
    def _(b: OpBuilder, base: Value, new: Value, out: int, size: Any, dim: int = 0) -> Value:
        d = b.dim(base, dim)
        return put_slice(b, base, new, d, as_expr(size) * out, b.shape(new)[d])

    @views(A.chunk.default)
    def _(b: OpBuilder, base: Value, new: Value, out: int, chunks: int, dim: int = 0) -> Value:
        d = b.dim(base, dim)
        n = b.shape(base)[d]
        return put_slice(b, base, new, d, FloorDiv(n + chunks - 1, chunks) * out, b.shape(new)[d])

    @views(A.diagonal.default)
    def _(b: OpBuilder, base: Value, new: Value, out: int, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
        from dhlo.frontend.aten.indexing import scatter

        n = b.shape(new)[-1]
        index = [b.iota([n], 0, "i64", start=max(-offset, 0)), b.iota([n], 0, "i64", start=max(offset, 0))]
        return scatter(b, base, index, new, [b.dim(base, dim1), b.dim(base, dim2)], b.rank(base) - 2, "set")

    @views(A.expand.default)
    def _(b: OpBuilder, base: Value, new: Value, out: int, *_: Any, **__: Any) -> Value:
        if b.shape(base) == b.shape(new):
            return new
        raise CompileError("an expanded tensor is written in place", hint="clone it first")


_register_views()
