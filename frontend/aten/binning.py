"""Counting values into bins, and reducing the elements of segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.frontend.aten.indexing import scatter
from dhlo.frontend.aten.reduction import scan
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import lookup
from dhlo.ir.symbols import product


# ---------------------------------------------------------------------------------------------------- histograms
def _line(b: OpBuilder, low: Value, high: Value, bins: int) -> Value:
    """The edges [bins + 1] of `bins` equal bins, counted from the nearer end as ATen's linspace does."""
    i = b.iota([bins + 1], 0, "i64")
    step = b.div(b.sub(high, low), float(bins))
    near = b.convert(i, b.dtype(low))
    far = b.convert(b.sub(bins, i), b.dtype(low))
    return b.select(b.ew(ew.Lt, i, (bins + 1) // 2), b.add(b.mul(near, step), low), b.sub(high, b.mul(far, step)))


def _edges(b: OpBuilder, x: Value, bins: Sequence[int], span: Sequence[float] | None) -> list[Value]:
    """Edges of the bins of each column of x [n, columns]: over `span` (low, high of each), or over what there is."""
    out, d = [], b.dtype(x)
    for k, count in enumerate(bins):
        if span:
            low, high = (b.full([], float(v), d) for v in span[2 * k : 2 * k + 2])
        else:
            column = b.pick(x, 1, k)
            empty = b.ew(ew.Eq, b.full([], b.shape(x)[0], "i64"), 0)
            low = b.select(empty, 0.0, b.reduce(column, "min", [0]), dtype=d)
            high = b.select(empty, 1.0, b.reduce(column, "max", [0]), dtype=d)
        one = b.ew(ew.Eq, low, high)
        low, high = b.select(one, b.sub(low, 0.5), low), b.select(one, b.add(high, 0.5), high)
        out.append(_line(b, low, high, int(count)))
    return out


def _counts(b: OpBuilder, x: Value, edges: Sequence[Value], weight: Value | None, density: bool) -> Value:
    """How many rows of x [n, columns], or the sum of their weights [n], fall between the edges of each column; the last edge
    belongs to the last bin."""
    n, d = b.shape(x)[0], b.dtype(x)
    sizes = [b.shape(e)[0] - 1 for e in edges]
    inside, index = b.full([n], True, "i1"), []
    for k, edge in enumerate(edges):
        column = b.pick(x, 1, k)
        at = b.sub(b.op(lookup.SearchSorted, [edge, column], {"right": True}), 1)
        low, high = b.pick(edge, 0, 0), b.pick(edge, 0, sizes[k])
        inside = b.ew(ew.And, inside, b.ew(ew.And, b.ew(ew.Ge, column, low), b.ew(ew.Le, column, high)))
        index.append(b.minimum(b.maximum(at, 0), sizes[k] - 1))
    added = b.select(inside, 1.0 if weight is None else b.convert(weight, d), 0.0, dtype=d)
    y = scatter(b, b.full(sizes, 0, d), index, added, list(range(len(edges))), 0, "add")
    if density:
        y = b.div(y, b.reduce(y, "sum", list(range(len(sizes)))))
        for k, (edge, size) in enumerate(zip(edges, sizes, strict=True)):
            width = b.sub(b.slice(edge, 0, 1, size), b.slice(edge, 0, 0, size))
            y = b.div(y, b.reshape(width, [size if i == k else 1 for i in range(len(sizes))]))
    return y


def _rows(b: OpBuilder, x: Value, weight: Value | None, columns: int | None) -> tuple[Value, Value | None]:
    """x as [n, columns] (None: one column of all its elements) and its weights as [n]."""
    last = 1 if columns is None else b.shape(x)[-1]
    n = b.type(x).numel if columns is None else product(b.shape(x)[:-1])
    return b.reshape(x, [n, last]), None if weight is None else b.reshape(weight, [n])


@lowers(A.histogram.bin_ct)
def _histogram(
    b: OpBuilder,
    x: Value,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> list[Value]:
    x, weight = _rows(b, x, weight, None)
    edges = _edges(b, x, [bins], range)
    return [_counts(b, x, edges, weight, density), edges[0]]


@lowers(A.histogram.bins_tensor)
def _histogram_at(b: OpBuilder, x: Value, bins: Value, *, weight: Value | None = None, density: bool = False) -> list[Value]:
    x, weight = _rows(b, x, weight, None)
    return [_counts(b, x, [bins], weight, density), bins]


@lowers(A._histogramdd_bin_edges.default)
def _histogramdd_edges(
    b: OpBuilder, x: Value, bins: Sequence[int], *, range: Sequence[float] | None = None, **_: Any
) -> list[Value]:
    return _edges(b, _rows(b, x, None, len(bins))[0], bins, range)


@lowers(A._histogramdd_from_bin_cts.default)
def _histogramdd(
    b: OpBuilder,
    x: Value,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> Value:
    x, weight = _rows(b, x, weight, len(bins))
    return _counts(b, x, _edges(b, x, bins, range), weight, density)


@lowers(A._histogramdd_from_bin_tensors.default)
def _histogramdd_at(b: OpBuilder, x: Value, bins: Sequence[Value], *, weight: Value | None = None, density: bool = False) -> Value:
    x, weight = _rows(b, x, weight, len(bins))
    return _counts(b, x, bins, weight, density)


# ---------------------------------------------------------------------------------------------------- segments
def _to_the_end(b: OpBuilder, offsets: Value, n: sympy.Expr) -> Value:
    """The same offsets [*lead, S + 1], the last of which must be n; else the call fails."""
    d = b.rank(offsets) - 1
    segments = b.shape(offsets)[d] - 1
    missing = b.take(b.full([1], 0, "i64"), [b.sub(b.slice(offsets, d, segments, 1), n)], [0], 0)
    return b.concat([b.slice(offsets, d, 0, segments), b.add(missing, n)], d)


_COMBINE = {
    "sum": ("sum", ew.Add),
    "mean": ("sum", ew.Add),
    "prod": ("prod", ew.Mul),
    "max": ("max", ew.Maximum),
    "min": ("min", ew.Minimum),
}


@lowers(A.segment_reduce.default)
def _segment_reduce(
    b: OpBuilder,
    x: Value,
    how: str,
    *,
    lengths: Value | None = None,
    indices: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Value:
    """x [*lead, n, *rest] reduced along `axis` over S segments, given by their `lengths` [*lead, S] or `offsets`
    [*lead, S + 1]; elements outside all segments don't count."""
    d, dtype = b.dim(x, axis), b.dtype(x)
    if offsets is None:
        if lengths is None:
            raise CompileError("segment_reduce wants lengths or offsets")
        ends = scan(b, b.convert(lengths, "i64"), "sum", -1)
        offsets = b.pad(ends, [*[0] * d, 1], [0] * (d + 1), 0.0)
        offsets = offsets if unsafe else _to_the_end(b, offsets, b.shape(x)[d])
    offsets = b.convert(offsets, "i64")
    segments = b.shape(offsets)[d] - 1
    combined, join = _COMBINE[how]
    y = b.op(lookup.SegmentReduce, [x, offsets], {"how": combined})
    if initial is not None:
        y = b.ew(join, y, initial, dtype=dtype)
    if how != "mean":
        return y
    count = b.convert(b.sub(b.slice(offsets, d, 1, segments), b.slice(offsets, d, 0, segments)), dtype)
    count = b.expand(count, b.shape(y), list(range(d + 1)))
    if initial is not None:  # stays in empty segments, which are the mean of nothing otherwise
        count = b.maximum(count, 1.0)
    return b.div(y, count)
