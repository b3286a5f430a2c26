"""Sorting, searching and counting; medians, the most frequent value, the k-th smallest."""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv

from dhlo.frontend.aten.indexing import gather, scatter
from dhlo.frontend.aten.reduction import scan
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import compute, lookup
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.types import TensorType


# ---------------------------------------------------------------------------------------------------- sorting and
# counting
@lowers(A.sort.default, A.sort.stable)
def _sort(b: OpBuilder, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> list[Value]:
    if b.rank(x) == 0:
        return [x, b.full([], 0, "i64")]
    return list(b.op(lookup.Sort, [x], {"dim": b.dim(x, dim), "descending": bool(descending)}))


@lowers(A.argsort.default, A.argsort.stable)
def _argsort(b: OpBuilder, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Value:
    return _sort(b, x, dim, descending)[1]


@lowers(A.topk.default)
def _topk(b: OpBuilder, x: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Value]:
    if b.rank(x) == 0:
        return [x, b.full([], 0, "i64")]
    d = b.dim(x, dim)
    b.require(sympy.Le(k, b.shape(x)[d]), "topk selects more elements than there are")
    shape = [k if i == d else s for i, s in enumerate(b.shape(x))]
    types = [TensorType.of(b.dtype(x), shape), TensorType.of("i64", shape)]
    return list(b.op(lookup.TopK, [x], {"dim": d, "largest": bool(largest)}, types))


@lowers(A.searchsorted.Tensor)
def _searchsorted(
    b: OpBuilder,
    edges: Value,
    x: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    if sorter is not None:
        edges = gather(b, edges, -1, sorter)
    d = b.result_type(edges, x)
    y = b.op(lookup.SearchSorted, [b.convert(edges, d), b.convert(x, d)], {"right": right or side == "right"})
    return b.convert(y, "i32") if out_int32 else y


@lowers(A.bucketize.Tensor)
def _bucketize(b: OpBuilder, x: Value, edges: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return _searchsorted(b, edges, x, out_int32=out_int32, right=right)


@lowers(A.histc.default)
def _histc(b: OpBuilder, x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    return b.op(lookup.Histogram, [x], {"bins": int(bins), "low": float(min), "high": float(max)})


@lowers(A.bincount.default)
def _bincount(b: OpBuilder, x: Value, weights: Value | None = None, minlength: Any = 0) -> Value:
    count = b.add(b.reduce(b.convert(x, "i64"), "max", [0]), 1)
    name = b.importer.item(b.maximum(b.maximum(count, 0), minlength))
    b.require(sympy.Ge(name, 0), "bincount counts non-negative integers")
    if weights is None:
        return scatter(b, b.full([name], 0, "i64"), [x], b.full(b.shape(x), 1, "i64"), [0], 0, "add")
    dtype = b.as_dtype("f32" if b.dtype(weights).name == "f32" else "f64")
    return scatter(b, b.full([name], 0, dtype), [x], weights, [0], 0, "add")


# ---------------------------------------------------------------------------------------------------- order
# statistics
def _sorted(b: OpBuilder, x: Value, d: int) -> list[Value]:
    pair: list[Value] = _sort(b, x, d)
    return pair


def _at(b: OpBuilder, xs: list[Value], d: int, place: Value, keepdim: bool) -> list[Value]:
    """Of each tensor the element at `place` of dim d, which `place` doesn't have."""
    place = b.unsqueeze(place, d)
    picked = [gather(b, x, d, place) for x in xs]
    return picked if keepdim else [b.squeeze(y, [d]) for y in picked]


def _middle(b: OpBuilder, x: Value, d: int, skip_nan: bool) -> Value:
    """Where the lower median of a sorted dim is; NaNs come last, and count as the median unless they are skipped."""
    n = b.shape(x)[d]
    rest = [s for i, s in enumerate(b.shape(x)) if i != d]
    if not b.dtype(x).is_float:
        return b.full(rest, FloorDiv(n - 1, 2), "i64")
    nans = b.reduce(b.convert(b.op(ew.IsNan, [x]), "i64"), "sum", [d])
    if skip_nan:
        return b.maximum(b.floordiv(b.sub(b.sub(n, nans), 1), 2), 0)
    return b.select(b.ew(ew.Gt, nans, 0), b.sub(n, nans), FloorDiv(n - 1, 2))


def _register_medians() -> None:
    def along(skip_nan: bool) -> Any:
        def rule(b: OpBuilder, x: Value, dim: int, keepdim: bool = False) -> list[Value]:
            if b.rank(x) == 0:
                return [x, b.full([], 0, "i64")]
            d = b.dim(x, dim)
            return _at(b, _sorted(b, x, d), d, _middle(b, x, d, skip_nan), keepdim)

        return rule

    def of_all(skip_nan: bool) -> Any:
        def rule(b: OpBuilder, x: Value) -> Value:
            flat = b.reshape(x, [b.type(x).numel])
            values = _sorted(b, flat, 0)[0]
            if b.dtype(x).is_float:  # the median of nothing is NaN
                values = b.concat([values, b.full([1], float("nan"), b.dtype(x))], 0)
            place = b.maximum(_middle(b, flat, 0, skip_nan), 0)
            return b.take(values, [place], [0], 0)

        return rule

    for op, skip_nan in ((A.median, False), (A.nanmedian, True)):
        lowers(op.dim)(along(skip_nan))
        lowers(op.default)(of_all(skip_nan))


_register_medians()


@lowers(A.mode.default)
def _mode(b: OpBuilder, x: Value, dim: int = -1, keepdim: bool = False) -> list[Value]:
    """The smallest of the most frequent values, and where its last occurrence is."""
    if b.rank(x) == 0:
        return [x, b.full([], 0, "i64")]
    d = b.dim(x, dim)
    values, index = _sorted(b, x, d)
    shape = b.shape(x)
    at = b.iota(shape, d, "i64")
    before = gather(b, values, d, b.maximum(b.sub(at, 1), 0))
    start = scan(b, b.select(b.ew(ew.Ne, values, before), at, 0), "max", d)
    best = b.op(compute.ArgReduce, [b.sub(at, start)], {"how": "max", "dim": d})  # a run's last element counts the others
    return _at(b, [values, index], d, best, keepdim)


@lowers(A.kthvalue.default)
def _kthvalue(b: OpBuilder, x: Value, k: Any, dim: int = -1, keepdim: bool = False) -> list[Value]:
    if b.rank(x) == 0:
        return [x, b.full([], 0, "i64")]
    d = b.dim(x, dim)
    place = b.full([s for i, s in enumerate(b.shape(x)) if i != d], k - 1, "i64")
    return _at(b, _sorted(b, x, d), d, place, keepdim)


@lowers(A.msort.default)
def _msort(b: OpBuilder, x: Value) -> Value:
    return _sorted(b, x, 0)[0] if b.rank(x) else x
