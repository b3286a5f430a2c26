"""Lookups by index, data-dependent selections, and writes by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from dhlo.frontend.aten.reduction import scan
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import LOWERINGS, lowers
from dhlo.ir.ops import control, lookup
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import as_expr, product, symbol
from dhlo.ir.types import TensorType


# ---------------------------------------------------------------------------------------------------- lookups
@lowers(A.embedding.default)
def _embedding(b: OpBuilder, table: Value, index: Value, *_: Any) -> Value:
    return b.take(table, [index], [0], 0)


@lowers(A.embedding_renorm.default)
def _embedding_renorm(b: OpBuilder, table: Value, index: Value, max_norm: float, p: float) -> Value:
    """The table with the rows that `index` names scaled down to a norm of at most `max_norm`."""
    index = b.reshape(index, [b.type(index).numel])
    rows = b.take(table, [index], [0], 0)
    norm = LOWERINGS[A.linalg_vector_norm.default](b, rows, p, [1], True)
    factor = b.select(b.ew(ew.Gt, norm, max_norm), b.div(max_norm, b.add(norm, 1e-7)), 1.0, dtype=b.dtype(table))
    return scatter(b, table, [index], b.mul(rows, factor), [0], 0, "set")


@lowers(A.index_select.default)
def _index_select(b: OpBuilder, x: Value, dim: int, index: Value) -> Value:
    d = b.dim(x, dim)
    if b.rank(x) == 0:
        at = b.reshape(index, [])
        return b.take(b.reshape(x, [1]), [at], [0], 0)
    return b.take(x, [index if b.rank(index) else b.reshape(index, [1])], [d], d)


def nonzero(b: OpBuilder, x: Value) -> Value:
    """Indices [n, rank] of the elements that aren't zero; defines n."""
    name = b.importer.symbol_name()
    b.dims.count(name)
    y = b.op(control.Nonzero, [x], {"symbol": name}, [TensorType.of("i64", [symbol(name), b.rank(x)])])
    b.importer.check_symbol(name)
    return b.restate(y)


def _columns(b: OpBuilder, x: Value) -> list[Value]:
    index = nonzero(b, x)
    return [b.pick(index, 1, d) for d in range(b.rank(x))]


def _indices(b: OpBuilder, x: Value, index: Sequence[Value | None]) -> tuple[Value, list[int], list[Value], int]:
    """x, of which dims that one mask is for are one; indexed dims, an integer tensor for each, and the result dim where their
    common shape goes."""
    dims: list[int] = []
    tensors: list[Value] = []
    d = 0
    for i in index:
        if i is None:
            d += 1
        elif b.dtype(i).name in ("i1", "ui8"):
            for own, size in zip(b.shape(i), b.shape(x)[d:], strict=False):
                b.dims.same(own, size)
            if b.rank(i) > 1:
                x, i = b.reshape(x, _one_dim(b, x, d, b.rank(i))), b.reshape(i, [b.type(i).numel])
            for column in _columns(b, i):
                dims.append(d)
                tensors.append(column)
                d += 1
        else:
            dims.append(d)
            tensors.append(i)
            d += 1
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    return x, dims, tensors, dims[0] if together else 0


def _one_dim(b: OpBuilder, x: Value, d: int, n: int) -> list[sympy.Expr]:
    """The shape of x with n dims from d on as one."""
    shape = list(b.shape(x))
    return [*shape[:d], product(shape[d : d + n]), *shape[d + n :]]


@lowers(A.index.Tensor, A._unsafe_index.Tensor)
def _index(b: OpBuilder, x: Value, index: Sequence[Value | None]) -> Value:
    if all(i is None for i in index):
        return x
    x, dims, tensors, at = _indices(b, x, index)
    return b.take(x, tensors, dims, at, wrap=True)


def _everywhere(b: OpBuilder, index: Value, dim: int) -> list[Value]:
    """Index tensors of every dim: `index` for dim, its own position for the others."""
    return [index if d == dim else b.iota(b.shape(index), d, b.dtype(index)) for d in range(b.rank(index))]


def _at_least_1d(b: OpBuilder, x: Value) -> Value:
    return x if b.rank(x) else b.reshape(x, [1])


@lowers(A.gather.default)
def gather(b: OpBuilder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False, wrap: bool = False) -> Value:
    if b.rank(x) == 0 or b.rank(index) == 0:
        return b.reshape(gather(b, _at_least_1d(b, x), dim, _at_least_1d(b, index), wrap=wrap), b.shape(index))
    if b.rank(x) != b.rank(index):  # allowed where the index is empty
        b.require(sympy.Eq(b.type(index).numel, 0), "the index has another rank")
        return b.full(b.shape(index), 0, b.dtype(x))
    d = b.dim(x, dim)
    return b.take(x, _everywhere(b, index, d), list(range(b.rank(x))), 0, wrap)


@lowers(A.take_along_dim.default)
def _take_along_dim(b: OpBuilder, x: Value, index: Value, dim: int | None = None) -> Value:
    if dim is None:
        return gather(b, b.reshape(x, [b.type(x).numel]), 0, b.reshape(index, [b.type(index).numel]), wrap=True)
    d = b.dim(x, dim)
    shape = b.broadcast_shape(
        [1 if i == d else s for i, s in enumerate(b.shape(x))],
        [1 if i == d else s for i, s in enumerate(b.shape(index))],
    )

    def fit(v: Value) -> Value:
        return b.expand(v, [b.shape(v)[d] if i == d else s for i, s in enumerate(shape)])

    return gather(b, fit(x), d, fit(index), wrap=True)


@lowers(A.take.default)
def _take(b: OpBuilder, x: Value, index: Value) -> Value:
    return b.take(b.reshape(x, [b.type(x).numel]), [index], [0], 0, wrap=True)


@lowers(A.put.default)
def _put(b: OpBuilder, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    n, shape = b.type(index).numel, b.shape(x)
    flat = b.reshape(x, [b.type(x).numel])
    source = b.reshape(source, [n])
    y = scatter(b, flat, [b.reshape(index, [n])], source, [0], 0, "add" if accumulate else "set", wrap=True)
    return b.reshape(y, shape)


# ---------------------------------------------------------------------------------------------------- data-dependent
# selections
@lowers(A.nonzero.default, A.argwhere.default)
def _nonzero(b: OpBuilder, x: Value) -> Value:
    return nonzero(b, x)


@lowers(A.nonzero_numpy.default, A.where.default)
def _where_indices(b: OpBuilder, x: Value) -> list[Value]:
    return _columns(b, x if b.rank(x) else b.reshape(x, [1]))


@lowers(A.masked_select.default)
def _masked_select(b: OpBuilder, x: Value, mask: Value) -> Value:
    shape = b.broadcast_shape(b.shape(x), b.shape(mask))
    whole = b.rank(x) == len(shape) and all(b.dims.equal(m, n) for m, n in zip(b.shape(x), shape, strict=True))
    x, mask = b.expand(x, shape), b.expand(mask, shape)
    if whole:  # what is repeated isn't stored to be one dim
        x, mask = (b.reshape(v, [product(shape)]) for v in (x, mask))
    return b.take(x, _columns(b, mask), list(range(b.rank(x))), 0)


@lowers(A.masked_scatter.default)
def _masked_scatter(b: OpBuilder, x: Value, mask: Value, source: Value) -> Value:
    shape = b.broadcast_shape(b.shape(x), b.shape(mask))
    x, mask = b.expand(x, shape), b.expand(mask, shape)
    n = b.type(source).numel
    order = scan(b, b.convert(b.reshape(mask, [b.type(x).numel]), "i64"), "sum", 0)
    source, first = b.reshape(source, [n]), 0
    if not b.dims.holds(n >= 1):  # something to look up for what isn't taken
        source, first = b.pad(source, [1], [0], 0), 1
    at = b.select(mask, b.reshape(b.add(order, first - 1), b.shape(x)), 0)
    return b.select(mask, b.take(source, [at], [0], 0), x)


@lowers(A.masked_scatter_backward.default)
def _masked_scatter_backward(b: OpBuilder, grad: Value, mask: Value, sizes: Sequence[Any]) -> Value:
    """The gradient of the source: what was chosen, in order, then zeros."""
    n, chosen = b.type(grad).numel, b.reshape(b.expand(mask, b.shape(grad)), [b.type(grad).numel])
    room = product([as_expr(s) for s in sizes])
    at = b.sub(scan(b, b.convert(chosen, "i64"), "sum", 0), 1)
    at = b.select(chosen, b.minimum(at, room), room)  # one place more, for what isn't chosen
    y = scatter(b, b.full([room + 1], 0, b.dtype(grad)), [at], b.reshape(grad, [n]), [0], 0, "set")
    return b.reshape(b.slice(y, 0, 0, room), sizes)


@lowers(A.repeat_interleave.self_Tensor)
def _repeat_interleave(b: OpBuilder, x: Value, times: Value, dim: int | None = None, *, output_size: Any = None) -> Value:
    if dim is None:
        x, dim = b.reshape(x, [b.type(x).numel]), 0
    d = b.dim(x, dim)
    times = b.expand(times, [b.shape(x)[d]])
    return b.take(x, [_repeated(b, times, output_size)], [d], d)


@lowers(A.repeat_interleave.Tensor)
def _repeat_interleave_indices(b: OpBuilder, times: Value, *, output_size: Any = None) -> Value:
    return b.convert(_repeated(b, times, output_size), b.dtype(times))


def _repeated(b: OpBuilder, times: Value, output_size: Any) -> Value:
    """Index i repeated times[i] times, for every i."""
    ends = scan(b, b.convert(times, "i64"), "sum", 0)
    if output_size is None:
        output_size = b.importer.item(b.reduce(b.convert(times, "i64"), "sum", [0]))
        b.require(sympy.Ge(output_size, 0), "repeats must not be negative")
    line = b.iota([output_size], 0, "i64")
    return b.op(lookup.SearchSorted, [ends, line], {"right": True})


# ---------------------------------------------------------------------------------------------------- writes
def scatter(
    b: OpBuilder,
    x: Value,
    index: Sequence[Value],
    src: Value,
    dims: Sequence[int],
    at: int,
    how: str,
    wrap: bool = False,
) -> Value:
    """dhlo.scatter: x with src combined into the places that `take` would read."""
    index = b.together(*index)
    shape = b.shape(index[0])
    rest = [s for d, s in enumerate(b.shape(x)) if d not in dims]
    src = b.expand(b.convert(src, b.dtype(x)), [*rest[:at], *shape, *rest[at:]])
    return b.op(lookup.Scatter, [x, *index, src], {"dims": list(dims), "at": at, "how": how, "wrap": wrap})


@lowers(A.index_put.default, A._unsafe_index_put.default, A._index_put_impl.default)
def _index_put(
    b: OpBuilder, x: Value, index: Sequence[Value | None], values: Value, accumulate: bool = False, unsafe: bool = False
) -> Value:
    mask = index[0] if len(index) == 1 else None
    if mask is not None and b.dtype(mask).is_bool and not accumulate and b.type(values).numel == 1:
        wide = b.expand(b.reshape(mask, [*b.shape(mask), *[1] * (b.rank(x) - b.rank(mask))]), b.shape(x))
        return b.select(wide, b.reshape(values, []), x, dtype=b.dtype(x))
    shape = b.shape(x)
    x, dims, tensors, at = _indices(b, x, index)
    return b.reshape(scatter(b, x, tensors, values, dims, at, "add" if accumulate else "set", wrap=True), shape)


def _at_dim(b: OpBuilder, x: Value, dim: int, index: Value, source: Value, how: str, wrap: bool = False) -> Value:
    if b.rank(x) == 0:
        return b.reshape(_at_dim(b, b.reshape(x, [1]), 0, index, b.reshape(source, [1]), how, wrap), [])
    d = b.dim(x, dim)
    return scatter(b, x, [_at_least_1d(b, index)], source, [d], d, how, wrap)


@lowers(A.index_copy.default)
def _index_copy(b: OpBuilder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _at_dim(b, x, dim, index, source, "set")


@lowers(A.index_add.default)
def _index_add(b: OpBuilder, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Value:
    return _at_dim(b, x, dim, index, source if alpha == 1 else b.mul(source, alpha), "add")


@lowers(A.index_fill.int_Scalar, A.index_fill.int_Tensor)
def _index_fill(b: OpBuilder, x: Value, dim: int, index: Value, value: Operand) -> Value:
    index = _at_least_1d(b, index)
    shape = [b.shape(index)[0] if i == b.dim(x, dim) else s for i, s in enumerate(b.shape(x))] or [1]
    source = b.expand(b.tensor(value, b.dtype(x)), shape)
    return _at_dim(b, x, dim, index, source, "set", wrap=True)


def _scatter(b: OpBuilder, x: Value, dim: int, index: Value, src: Operand, how: str) -> Value:
    if b.rank(x) == 0:
        x1, i1 = b.reshape(x, [1]), b.reshape(index, [1])
        s1 = b.reshape(src, [1]) if b.is_tensor(src) else src
        return b.reshape(_scatter(b, x1, 0, i1, s1, how), [])
    shape = b.shape(index)
    if b.is_tensor(src):
        for d, n in enumerate(shape):  # src may be larger than index
            if not b.dims.equal(n, b.shape(src)[d]):
                src = b.slice(src, d, 0, n)
    else:
        src = b.full(shape, src, b.dtype(x))
    return scatter(b, x, _everywhere(b, index, b.dim(x, dim)), src, list(range(b.rank(x))), 0, how)


@lowers(A.scatter.src, A.scatter.value)
def _scatter_set(b: OpBuilder, x: Value, dim: int, index: Value, src: Operand) -> Value:
    return _scatter(b, x, dim, index, src, "set")


@lowers(A.scatter.reduce, A.scatter.value_reduce)
def _scatter_combine(b: OpBuilder, x: Value, dim: int, index: Value, src: Operand, *, reduce: str) -> Value:
    return _scatter(b, x, dim, index, src, {"add": "add", "multiply": "mul"}[reduce])


@lowers(A.scatter_add.default)
def _scatter_add(b: OpBuilder, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter(b, x, dim, index, src, "add")


@lowers(A.scatter_reduce.two)
def _scatter_reduce(b: OpBuilder, x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True) -> Value:
    return _reduced(b, x, lambda v, s, how: _scatter(b, v, dim, index, s, how), src, reduce, include_self)


@lowers(A.index_reduce.default)
def _index_reduce(b: OpBuilder, x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True) -> Value:
    def write(v: Value, s: Operand, how: str) -> Value:
        s = s if b.is_tensor(s) else b.full(b.shape(src), s, b.dtype(v))
        return _at_dim(b, v, dim, index, s, how)

    return _reduced(b, x, write, src, reduce, include_self)


def _reduced(
    b: OpBuilder, x: Value, write: Callable[[Value, Operand, str], Value], src: Value, reduce: str, include_self: bool
) -> Value:
    """x with `src` combined into places by `write(tensor, source, how)`; unless `include_self`, what was there doesn't count."""
    how = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}[reduce]
    if b.dtype(x).is_bool:  # combined as 0 and 1
        either = "amax" if reduce in ("sum", "amax") else "amin"
        return b.convert(_reduced(b, b.convert(x, "ui8"), write, b.convert(src, "ui8"), either, include_self), "i1")
    touched = write(b.full(b.shape(x), 0, "i64"), 1, "add")
    start = x
    if not include_self:
        info = torch.finfo(b.dtype(x).torch) if b.dtype(x).is_float else torch.iinfo(b.dtype(x).torch)
        low = float("-inf") if b.dtype(x).is_float else info.min
        high = float("inf") if b.dtype(x).is_float else info.max
        neutral = {"add": 0, "mul": 1, "max": low, "min": high}[how]
        start = b.select(b.ew(ew.Gt, touched, 0), neutral, x, dtype=b.dtype(x))
    y = write(start, src, how)
    if reduce != "mean":
        return y
    count = b.maximum(b.add(touched, 1) if include_self else touched, 1)
    return b.div(y, count) if b.dtype(x).is_float else b.ew(ew.FloorDiv, y, count, dtype=b.dtype(x))


@lowers(A._unsafe_masked_index.default)
def _masked_index(b: OpBuilder, x: Value, mask: Value, index: Sequence[Value | None], fill: Any) -> Value:
    _, dims, tensors, at = _indices(b, x, _clamped(b, x, index))
    y = b.take(x, tensors, dims, at)
    return b.select(b.expand(mask, b.shape(y)), y, fill, dtype=b.dtype(x))


@lowers(A._unsafe_masked_index_put_accumulate.default)
def _masked_index_put(b: OpBuilder, x: Value, mask: Value, index: Sequence[Value | None], values: Value) -> Value:
    _, dims, tensors, at = _indices(b, x, _clamped(b, x, index))
    return scatter(b, x, tensors, b.select(mask, values, 0, dtype=b.dtype(x)), dims, at, "add")


def _clamped(b: OpBuilder, x: Value, index: Sequence[Value | None]) -> list[Value | None]:
    """Indices brought into range."""
    return [None if i is None else b.minimum(b.maximum(i, 0), b.shape(x)[d] - 1) for d, i in enumerate(index)]


@lowers(A.nonzero_static.default)
def _nonzero_static(b: OpBuilder, x: Value, *, size: Any, fill_value: int = -1) -> Value:
    """The first `size` rows of nonzero, filled up: sorted, what isn't zero comes first."""
    flat = b.reshape(b.convert(x, "i1"), [b.type(x).numel])
    n = b.shape(flat)[0]
    order = scan(b, b.convert(flat, "i64"), "sum", 0)
    row = b.iota([size], 0, "i64")
    at = b.op(lookup.SearchSorted, [order, b.add(row, 1)], {"right": False})
    there = b.ew(ew.Lt, at, n)
    columns = []
    for s in reversed(b.shape(x)):
        columns.append(b.select(there, b.remainder(at, s), fill_value))
        at = b.floordiv(at, s)
    if not columns:
        return b.full([size, 0], 0, "i64")
    return b.concat([b.unsqueeze(c, 1) for c in reversed(columns)], 1)
