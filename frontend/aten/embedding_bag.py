"""Sums, means and maxima of bags of rows of a table, and their gradients."""

from __future__ import annotations

from typing import Any

import sympy

from dhlo.frontend.aten.indexing import scatter
from dhlo.frontend.aten.pooling_indices import wanted
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import lookup
from dhlo.ir.types import DType

_SUM, _MEAN, _MAX = range(3)


@lowers(A.embedding_bag.padding_idx)
def _embedding_bag_padding(b: OpBuilder, table: Value, *args: Any, padding_idx: int | None = None) -> list[Value]:
    *rest, last = args if len(args) == 8 else (*args, padding_idx)
    if last is not None and last < 0:  # here counted from the end; below, none
        last = b.shape(table)[0] + last
    return _embedding_bag(b, table, *rest, padding_idx=last)  # type: ignore[no-any-return]


@lowers(
    A.embedding_bag.default,
    A._embedding_bag.default,
    A._embedding_bag_forward_only.default,
)
def _embedding_bag(
    b: OpBuilder,
    table: Value,
    index: Value,
    offsets: Value,
    scale_grad: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Value | None = None,
    include_last: bool = False,
    padding_idx: int | None = None,
) -> list[Value]:
    """The bags' rows, the bag of each index, how many indices each bag has, and for maxima the rows they came from."""
    if include_last:
        b.require(sympy.Ge(b.shape(offsets)[0], 1), "embedding_bag: there is no last offset")
        ends, offsets = b.convert(offsets, "i64"), b.slice(offsets, 0, 0, b.shape(offsets)[0] - 1)
    else:
        ends = b.concat([b.convert(offsets, "i64"), b.full([1], b.shape(index)[0], "i64")], 0)
    bags, work = b.shape(offsets)[0], b.wide_dtype(table)
    ends = _from_zero(b, ends, bags)
    rows = b.convert(b.take(table, [index], [0], 0), work)
    used = _used(b, index, padding_idx, work)
    sizes = _sizes(b, ends, bags) if padding_idx in (None, -1) else b.convert(_bags(b, used, ends, "sum"), "i64")
    count = b.unsqueeze(b.convert(sizes, work), 1)
    best = sizes
    if mode == _MAX:
        rows = b.select(b.unsqueeze(b.ew(ew.Gt, used, 0), 1), rows, float("-inf"))
        out = _bags(b, rows, ends, "max")
        if wanted(b, 3):
            best = b.select(b.ew(ew.Gt, count, 0), _first_rows(b, index, _bag_of(b, index, offsets), rows, out), 0)
        out = b.select(b.ew(ew.Gt, count, 0), out, 0.0)
    else:
        used = b.mul(used, weights) if weights is not None else used
        out = _bags(b, b.mul(rows, b.unsqueeze(used, 1)), ends, "sum")
        out = b.div(out, b.maximum(count, 1)) if mode == _MEAN else out
    bag = _bag_of(b, index, offsets)
    if mode == _SUM:
        sizes = best = b.full([bags], 0, "i64")  # as PyTorch, which doesn't count for sums
    stated = b.node.meta.get("val")
    if isinstance(stated, tuple | list) and stated[1].shape == (0,):  # nor names the bags, at times
        bag = b.full([0], 0, "i64")
    return [b.convert(out, b.dtype(table)), bag, sizes, best]


def _bags(b: OpBuilder, rows: Value, ends: Value, how: str) -> Value:
    """What each bag's rows are together. `ends` [bags + 1]: where each begins, and the last one ends."""
    return b.op(lookup.SegmentReduce, [rows, ends], {"how": how})


def _from_zero(b: OpBuilder, ends: Value, bags: sympy.Expr) -> Value:
    """The same ends, of which the first one must be 0 if there are bags; else the call fails."""
    some = sympy.Min(bags, 1)
    first = b.take(b.full([1], 0, "i64"), [b.slice(ends, 0, 0, some)], [0], 0)
    return b.concat([first, b.slice(ends, 0, some, bags + 1 - some)], 0)


def _sizes(b: OpBuilder, ends: Value, bags: sympy.Expr) -> Value:
    """How many indices each bag has."""
    return b.sub(b.slice(ends, 0, 1, bags), b.slice(ends, 0, 0, bags))


def _bag_of(b: OpBuilder, index: Value, offsets: Value) -> Value:
    """The bag [n] of each index, by where the bags start."""
    places = b.iota([b.shape(index)[0]], 0, "i64")
    return b.sub(b.op(lookup.SearchSorted, [b.convert(offsets, "i64"), places], {"right": True}), 1)


def _used(b: OpBuilder, index: Value, padding_idx: Any, dtype: DType) -> Value:
    """1 for indices that count, 0 for the padding's."""
    if padding_idx is None or padding_idx == -1:
        return b.full(b.shape(index), 1, dtype)
    return b.convert(b.ew(ew.Ne, index, padding_idx), dtype)


def _first_rows(b: OpBuilder, index: Value, bag: Value, rows: Value, largest: Value) -> Value:
    """The table's row [bags, D] that each of the largest elements was first found in; 0 where there is none."""
    n = b.shape(index)[0]
    hit = b.ew(ew.Eq, rows, b.take(largest, [bag], [0], 0))
    place = b.select(hit, b.iota(b.shape(rows), 0, "i64"), n)
    first = scatter(b, b.full(b.shape(largest), n, "i64"), [bag], place, [0], 0, "min")
    return b.take(b.concat([b.convert(index, "i64"), b.full([1], 0, "i64")], 0), [first], [0], 0)


@lowers(A._embedding_bag_backward.default)
def _embedding_bag_backward(b: OpBuilder, grad: Value, index: Value, offsets: Value, _: Value, *args: Any) -> Value:
    """The table's gradient [rows, D]. (PyTorch leaves the given bags empty at times.)"""
    bag_size, best, rows, by_frequency, mode, _sparse, *rest = args
    return _dense_backward(b, grad, index, _bag_of(b, index, offsets), bag_size, best, rows, by_frequency, mode, *rest)


@lowers(A._embedding_bag_dense_backward.default)
def _dense_backward(
    b: OpBuilder,
    grad: Value,
    index: Value,
    bag: Value,
    bag_size: Value,
    best: Value,
    rows: Any,
    by_frequency: bool,
    mode: int,
    weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    dtype, work = b.dtype(grad), b.wide_dtype(grad)
    grad = b.convert(grad, work)
    start = b.full([rows, b.shape(grad)[1]], 0, work)
    if mode == _MAX:
        grad = b.select(b.unsqueeze(b.ew(ew.Gt, bag_size, 0), 1), grad, 0.0)
        return b.convert(scatter(b, start, [best, b.iota(b.shape(best), 1, "i64")], grad, [0, 1], 0, "add"), dtype)
    share = _used(b, index, padding_idx, work)
    if by_frequency:
        count = scatter(b, b.full([rows], 0, work), [index], b.full(b.shape(index), 1, work), [0], 0, "add")
        share = b.div(share, b.take(count, [index], [0], 0))
    if mode == _MEAN:
        share = b.div(share, b.maximum(b.convert(b.take(bag_size, [bag], [0], 0), work), 1.0))
    if weights is not None:
        share = b.mul(share, weights)
    grad = b.mul(b.take(grad, [bag], [0], 0), b.unsqueeze(share, 1))
    return b.convert(scatter(b, start, [index], grad, [0], 0, "add"), dtype)


@lowers(A._embedding_bag_per_sample_weights_backward.default)
def _weights_backward(
    b: OpBuilder, grad: Value, table: Value, index: Value, offsets: Value, bag: Value, mode: int, padding_idx: int = -1
) -> Value:
    """What a step of each index's weight changes: the product of its row with its bag's gradient."""
    work = b.wide_dtype(grad)
    given = b.take(grad, [_bag_of(b, index, offsets)], [0], 0)
    rows, given = (b.convert(v, work) for v in (b.take(table, [index], [0], 0), given))
    found = b.mul(b.reduce(b.mul(rows, given), "sum", [1]), _used(b, index, padding_idx, work))
    return b.convert(found, b.dtype(grad))
