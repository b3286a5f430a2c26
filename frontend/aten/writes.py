"""Writes into parts of a tensor, and through views into what they are views of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils._sympy.functions import FloorDiv

from dhlo.errors import CompileError
from dhlo.frontend.aten.indexing import scatter
from dhlo.frontend.aten.movement import moved, window_index
from dhlo.frontend.aten.parts import element, position, section_start, slice_bounds
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers, maybe_views, views
from dhlo.ir.symbols import as_expr


def put_slice(b: OpBuilder, base: Value, new: Value, d: int, first: Any, size: Any, step: int = 1) -> Value:
    """`base` with part of a dim replaced."""
    n = b.shape(base)[d]
    shape = [size if i == d else s for i, s in enumerate(b.shape(base))]
    new = b.expand(b.convert(new, b.dtype(base)), shape)
    if step != 1:
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


def same_elements(b: OpBuilder, base: Value, new: Value, out: int, *_: Any, **__: Any) -> Value:
    return b.convert(b.reshape(new, b.shape(base)), b.dtype(base))


views(
    A.view.default,
    A.unsqueeze.default,
    A.squeeze.default,
    A.squeeze.dim,
    A.squeeze.dims,
    A.alias.default,
    A.detach.default,
    A.detach_.default,
    A.unflatten.int,
    A.view_as.default,
    A.lift_fresh.default,
    A.positive.default,
    A.real.default,
    A.conj.default,
    A._conj.default,
)(same_elements)
maybe_views(
    A.reshape.default,
    A.flatten.using_ints,
    A.contiguous.default,
    A.to.dtype,
    A.to.dtype_layout,
    A.to.device,
    A.to.other,
    A.type_as.default,
    A.dropout.default,
    A.ravel.default,
    A.reshape_as.default,
    A.resolve_conj.default,
    A.resolve_neg.default,
)(same_elements)


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
views(A.transpose.int, A.swapaxes.default, A.swapdims.default)(permuted(swapped))
views(A.t.default, A.numpy_T.default)(permuted(lambda b, base: list(reversed(range(b.rank(base))))))
views(A.mT.default, A.adjoint.default)(permuted(lambda b, base: swapped(b, base, -2, -1)))
views(A.movedim.int, A.movedim.intlist, A.moveaxis.int, A.moveaxis.intlist)(permuted(moved))


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


@views(A.tensor_split.sections)
def _(b: OpBuilder, base: Value, new: Value, out: int, sections: int, dim: int = 0) -> Value:
    d = b.dim(base, dim)
    return put_slice(b, base, new, d, section_start(b.shape(base)[d], sections, out), b.shape(new)[d])


@views(A.tensor_split.indices)
def _(b: OpBuilder, base: Value, new: Value, out: int, indices: Sequence[Any], dim: int = 0) -> Value:
    d = b.dim(base, dim)
    return put_slice(b, base, new, d, position(b, indices[out - 1], b.shape(base)[d]) if out else 0, b.shape(new)[d])


@views(A.unfold.default)
def _(b: OpBuilder, base: Value, new: Value, out: int, dim: int, size: int, step: int) -> Value:
    if size > step:
        raise CompileError("windows that overlap are written in place", hint="write to the tensor itself")
    d, rank = b.dim(base, dim), b.rank(base)
    windows = b.transpose(new, [*range(d + 1), rank, *range(d + 1, rank)])
    return scatter(b, base, [window_index(b, b.shape(new)[d], size, step)], windows, [d], d, "set")


@views(A.diagonal.default)
def _(b: OpBuilder, base: Value, new: Value, out: int, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return _diagonal_scatter(b, base, new, offset, dim1, dim2)


@lowers(A.diagonal_scatter.default)
def _diagonal_scatter(b: OpBuilder, base: Value, new: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    n = b.shape(new)[-1]
    index = [b.iota([n], 0, "i64", start=max(-offset, 0)), b.iota([n], 0, "i64", start=max(offset, 0))]
    return scatter(b, base, index, new, [b.dim(base, dim1), b.dim(base, dim2)], b.rank(base) - 2, "set")


@views(A.expand.default, A.expand_as.default, A.broadcast_to.default)
def _(b: OpBuilder, base: Value, new: Value, out: int, *_: Any, **__: Any) -> Value:
    if b.shape(base) == b.shape(new):
        return new
    raise CompileError("an expanded tensor is written in place", hint="clone it first")
