"""Parts of tensors: slices, elements, splits, diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv

from dhlo.errors import CompileError
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.dims import static_value
from dhlo.frontend.registry import lowers
from dhlo.ir.symbols import as_expr

_LAST = 1 << 62  # an end beyond this means "to the end"


def position(b: OpBuilder, v: Any, n: sympy.Expr) -> sympy.Expr:
    """An index that counts from the end if it is negative."""
    e = as_expr(v)
    if e.is_number:
        return e if e >= 0 else e + n
    if b.dims.nonnegative(e):
        return e
    if b.dims.nonnegative(-e - 1):
        return e + n
    if b.dims.nonnegative(-e):  # -m for an m that may be 0
        return sympy.Piecewise((e + n, e < 0), (e, True))
    return sympy.Piecewise((e, e >= 0), (e + n, True))


def slice_bounds(b: OpBuilder, n: sympy.Expr, start: Any, end: Any, step: Any) -> tuple[sympy.Expr, sympy.Expr]:
    """(first index, number of elements) of a Python slice of n elements."""

    def clamp(v: Any) -> sympy.Expr:
        p = position(b, v, n)
        return p if p == n or p == 0 else sympy.Max(0, sympy.Min(p, n))

    first = as_expr(0) if start is None else b.size(clamp(start))
    last = n if end is None or (isinstance(end, int) and end >= _LAST) else b.size(clamp(end))
    size = b.size(sympy.Max(last - first, 0))
    return first, size if step == 1 else FloorDiv(size + step - 1, step)


@lowers(A.slice.Tensor, A.slice_copy.Tensor)
def _slice(b: OpBuilder, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    d, step = b.dim(x, dim), static_value(b.dims.fold(as_expr(step)))
    if not isinstance(step, int):
        b.require(sympy.Ge(step, 1), "a slice's step is positive")
    first, size = slice_bounds(b, b.shape(x)[d], start, end, step)
    _name_place(b, b.node.meta["val"], d, first, size)
    if not isinstance(step, int):  # no layout has such strides: elements are looked up
        return b.take(x, [b.iota([size], 0, "i64", first, step)], [d], d)
    return b.slice(x, d, first, size, step)


def _name_place(b: OpBuilder, part: Any, d: int, first: Any, size: Any = None) -> None:
    """Where data decide the bounds of a part, the exported program names its size in dim d (unless it has none) and its place in
    memory: says what they are."""
    if not b.node.meta.get("unbacked_bindings"):
        return
    whole = b.node.args[0].meta["val"]
    named = [(part.storage_offset(), whole.storage_offset() + whole.stride(d) * first)]
    for name, value in named if size is None else [(part.shape[d], size), *named]:
        b.dims.equate(b.importer.size_of(name), b.importer.size_of(value))


@lowers(A.narrow.default)
def _narrow(b: OpBuilder, x: Value, dim: int, start: Any, length: Any) -> Value:
    d = b.dim(x, dim)
    first = position(b, start, b.shape(x)[d])
    b.require(sympy.Le(first + length, b.shape(x)[d]), "narrow reaches beyond the end")
    return b.slice(x, d, first, length)


@lowers(A.select.int, A.select_copy.int)
def _select(b: OpBuilder, x: Value, dim: int, index: Any) -> Value:
    d = b.dim(x, dim)
    at = element(b, b.shape(x)[d], index)
    _name_place(b, b.node.meta["val"], d, at)
    return b.pick(x, d, at)


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
    n, edges = b.shape(x)[d], [0, *indices, None]
    return [b.slice(x, d, *slice_bounds(b, n, lo, hi, 1)) for lo, hi in zip(edges, edges[1:], strict=False)]


@lowers(A.tensor_split.tensor_indices_or_sections)
def _tensor_split_at(b: OpBuilder, x: Value, where: Value, dim: int = 0) -> list[Value]:
    """Splits before the positions [n] that a tensor holds."""
    if b.rank(where) == 0:
        raise CompileError("tensor_split into a number of parts that a tensor holds", hint="pass a plain int")
    d = b.dim(x, dim)
    at = [b.importer.item(b.pick(where, 0, i), fresh=True) for i in range(_count(b) - 1)]
    bounds = [slice_bounds(b, b.shape(x)[d], lo, hi, 1) for lo, hi in zip([None, *at], [*at, None], strict=True)]
    for (first, size), part in zip(bounds, b.node.meta["val"], strict=True):
        _name_place(b, part, d, first, size)
    return [b.slice(x, d, first, size) for first, size in bounds]


@lowers(A.tensor_split.sections)
def _tensor_split_sections(b: OpBuilder, x: Value, sections: int, dim: int = 0) -> list[Value]:
    d = b.dim(x, dim)
    n = b.shape(x)[d]
    return [b.slice(x, d, section_start(n, sections, i), _section(n, sections, i)) for i in range(sections)]


def _section(n: Any, sections: int, i: int) -> Any:
    """The size of a part of tensor_split."""
    return FloorDiv(n + sections - 1 - i, sections)


def section_start(n: Any, sections: int, i: int) -> Any:
    """Where a part of tensor_split starts."""
    return sum((_section(n, sections, k) for k in range(i)), as_expr(0))


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
