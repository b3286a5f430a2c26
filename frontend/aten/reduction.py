"""Reductions, running combinations and arg-reductions."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import compute
from dhlo.ir.ops import elementwise as ew


def _summable(b: OpBuilder, x: Value, dtype: torch.dtype | None) -> Value:
    """Integers and bools are summed as i64."""
    if dtype is not None:
        return b.convert(x, dtype)
    return b.convert(x, "i64") if b.dtype(x).is_int or b.dtype(x).is_bool else x


@lowers(A.sum.dim_IntList, A.sum.default)
def _sum(b: OpBuilder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    return b.reduce(_summable(b, x, dtype), "sum", b.dims_list(x, dim), keepdim)


@lowers(A.prod.default)
def _prod_all(b: OpBuilder, x: Value, *, dtype: torch.dtype | None = None) -> Value:
    return b.reduce(_summable(b, x, dtype), "prod", b.dims_list(x, None))


@lowers(A.prod.dim_int)
def _prod(b: OpBuilder, x: Value, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    return b.reduce(_summable(b, x, dtype), "prod", b.dims_list(x, dim), keepdim)


@lowers(A.mean.default, A.mean.dim)
def _mean(b: OpBuilder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    return mean(b, x if dtype is None else b.convert(x, dtype), b.dims_list(x, dim), keepdim)


def mean(b: OpBuilder, x: Value, dims: list[int], keepdim: bool) -> Value:
    """Average along dims, accumulated in f32 or wider."""
    return b.in_f32(lambda v: b.div(b.reduce(v, "sum", dims, keepdim), b.count(v, dims)), x)


def variance(b: OpBuilder, x: Value, dims: list[int], correction: Any, keepdim: bool) -> tuple[Value, Value]:
    """Variance and mean in two passes; `correction` is subtracted from the count."""
    mu = mean(b, x, dims, True)
    dev = b.sub(x, mu)
    count = b.count(x, dims)
    divisor: Any = sympy.Max(count - correction, 0) if correction else count
    if correction < 0:  # the variance of nothing is NaN
        divisor = sympy.Piecewise((divisor, sympy.Gt(count, 0)), (0, True))
    var = b.div(b.reduce(b.mul(dev, dev), "sum", dims, keepdim), b.dims.fold(divisor))
    return var, mu if keepdim else b.squeeze(mu, dims)


def _correction(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, bool]:
    """(dims, correction, keepdim) of the overloads of var and std."""
    if "correction" in kwargs or (args and not isinstance(args[0], bool)) or not args:
        dim = args[0] if args else kwargs.get("dim")
        if len(args) > 1 and isinstance(args[1], bool):  # (dim, unbiased, keepdim)
            return dim, int(args[1]), args[2] if len(args) > 2 else kwargs.get("keepdim", False)
        c = kwargs.get("correction", kwargs.get("unbiased", 1))
        return dim, 1 if c is None else (int(c) if float(c).is_integer() else c), kwargs.get("keepdim", False)
    return None, int(args[0]), False


@lowers(A.var.default, A.var.dim, A.var.correction)
def _var(b: OpBuilder, x: Value, *args: Any, **kwargs: Any) -> Value:
    dim, correction, keepdim = _correction(args, kwargs)
    return b.in_f32(lambda v: variance(b, v, b.dims_list(x, dim), correction, keepdim)[0], x)


@lowers(A.std.default, A.std.dim, A.std.correction)
def _std(b: OpBuilder, x: Value, *args: Any, **kwargs: Any) -> Value:
    dim, correction, keepdim = _correction(args, kwargs)
    return b.in_f32(lambda v: b.unary(ew.Sqrt, variance(b, v, b.dims_list(x, dim), correction, keepdim)[0]), x)


def _with_mean(b: OpBuilder, x: Value, root: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Value]:
    """The variance or its root, and the mean, of which both are rounded once."""
    dim, correction, keepdim = _correction(args, kwargs)
    dtype = b.dtype(x)
    var, mu = variance(b, b.convert(x, b.wide_dtype(x)), b.dims_list(x, dim), correction, keepdim)
    return [b.convert(b.unary(ew.Sqrt, var) if root else var, dtype), b.convert(mu, dtype)]


@lowers(A.var_mean.correction, A.var_mean.dim, A.var_mean.default)
def _var_mean(b: OpBuilder, x: Value, *args: Any, **kwargs: Any) -> list[Value]:
    return _with_mean(b, x, False, args, kwargs)


@lowers(A.std_mean.correction, A.std_mean.dim, A.std_mean.default)
def _std_mean(b: OpBuilder, x: Value, *args: Any, **kwargs: Any) -> list[Value]:
    return _with_mean(b, x, True, args, kwargs)


@lowers(A.linalg_vector_norm.default, A.norm.ScalarOpt_dim, A.norm.Scalar, A.norm.ScalarOpt_dim_dtype)
def _vector_norm(
    b: OpBuilder,
    x: Value,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    x = b.convert(x, dtype) if dtype is not None else x
    dims, p = b.dims_list(x, dim), 2 if ord is None else float(ord)

    def f(v: Value) -> Value:
        mag = b.op(ew.Abs, [v])
        if p in (float("inf"), -float("inf")):
            return b.reduce(mag, "max" if p > 0 else "min", dims, keepdim)
        if p == 0:
            return b.reduce(b.convert(b.ew(ew.Ne, v, 0.0), b.dtype(v)), "sum", dims, keepdim)
        if p == 1:
            return b.reduce(mag, "sum", dims, keepdim)
        if p == 2:
            return b.unary(ew.Sqrt, b.reduce(b.mul(v, v), "sum", dims, keepdim))
        return b.ew(ew.Pow, b.reduce(b.ew(ew.Pow, mag, p), "sum", dims, keepdim), 1.0 / p)

    return b.in_f32(f, x)


@lowers(A.hash_tensor.default)
def _hash_tensor(b: OpBuilder, x: Value, dim: Any = None, keepdim: bool = False, mode: int = 0) -> Value:
    """The exclusive or of the bits of all elements, as f64 or i64."""
    if not dim:
        b.require(sympy.Ge(b.type(x).numel, 1), "the hash of a tensor without elements wants a dim")
    bits = b.convert(x, "i64")
    if b.dtype(x).is_float:
        wide = b.convert(x, "f64")
        bits = b.op(ew.Bitcast, [wide], None, [b.type(wide).with_dtype("i64")])
    y = b.reduce(bits, "xor", b.dims_list(x, dim), keepdim)
    return b.op(ew.Bitcast, [y], None, [b.type(y).with_dtype("ui64")])


# ---------------------------------------------------------------------------------------------------- extremes and
# truth
def _need_elements(b: OpBuilder, x: Value, dims: list[int]) -> None:
    """What has no elements has no extreme. Decompositions, which may be traced at a size and hold at 0, and branches, which needn't
    be taken, promise nothing."""
    if b.importer is None or not (b.importer.inlined or b.importer.depth):
        for d in dims:
            b.require(sympy.Ge(b.shape(x)[d], 1), "the largest or smallest of no elements was asked for")


def extreme(b: OpBuilder, x: Value, how: str, dim: Any, keepdim: bool) -> Value:
    """The largest ("max") or smallest along dims, which must have elements."""
    dims = b.dims_list(x, dim)
    _need_elements(b, x, dims)
    return b.reduce(x, how, dims, keepdim)


@lowers(A.amax.default, A.max.default)
def _amax(b: OpBuilder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return extreme(b, x, "max", dim, keepdim)


@lowers(A.amin.default, A.min.default)
def _amin(b: OpBuilder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return extreme(b, x, "min", dim, keepdim)


def _arg(b: OpBuilder, x: Value, how: str, dim: int | None, keepdim: bool) -> Value:
    _need_elements(b, x, b.dims_list(x, None if dim is None else [dim]) if b.rank(x) else [])
    if dim is None or b.rank(x) == 0:
        y = b.op(compute.ArgReduce, [b.reshape(x, [b.type(x).numel])], {"how": how, "dim": 0})
        return b.reshape(y, [1] * b.rank(x)) if keepdim else y
    d = b.dim(x, dim)
    y = b.op(compute.ArgReduce, [x], {"how": how, "dim": d})
    return b.unsqueeze(y, d) if keepdim else y


@lowers(A.argmax.default)
def _argmax(b: OpBuilder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _arg(b, x, "max", dim, keepdim)


@lowers(A.argmin.default)
def _argmin(b: OpBuilder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _arg(b, x, "min", dim, keepdim)


@lowers(A.max.dim)
def _max_dim(b: OpBuilder, x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    return [extreme(b, x, "max", [dim] if b.rank(x) else [], keepdim), _arg(b, x, "max", dim, keepdim)]


@lowers(A.min.dim)
def _min_dim(b: OpBuilder, x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    return [extreme(b, x, "min", [dim] if b.rank(x) else [], keepdim), _arg(b, x, "min", dim, keepdim)]


def _truth(b: OpBuilder, x: Value, how: str, dim: Any, keepdim: bool) -> Value:
    y = b.reduce(b.convert(x, "i1"), how, b.dims_list(x, dim), keepdim)
    return b.convert(y, "ui8") if b.dtype(x).name == "ui8" else y


@lowers(A.any.default, A.any.dim, A.any.dims)
def _any(b: OpBuilder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _truth(b, x, "any", dim, keepdim)


@lowers(A.all.default, A.all.dim, A.all.dims)
def _all(b: OpBuilder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _truth(b, x, "all", dim, keepdim)


@lowers(A._is_all_true.default)
def _is_all_true(b: OpBuilder, x: Value) -> Value:
    return _truth(b, x, "all", None, False)


@lowers(A._is_any_true.default)
def _is_any_true(b: OpBuilder, x: Value) -> Value:
    return _truth(b, x, "any", None, False)


@lowers(A.count_nonzero.dim_IntList, A.count_nonzero.default)
def _count_nonzero(b: OpBuilder, x: Value, dim: Any = None) -> Value:
    return b.reduce(b.convert(b.convert(x, "i1"), "i64"), "sum", b.dims_list(x, dim))


# ---------------------------------------------------------------------------------------------------- running
# combinations
def scan(b: OpBuilder, x: Value, how: str, dim: int) -> Value:
    """Inclusive running combination along a dim."""
    return b.op(compute.Scan, [x], {"how": how, "dim": b.dim(x, dim)}) if b.rank(x) else x


@lowers(A.cumsum.default)
def _cumsum(b: OpBuilder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    return scan(b, _summable(b, x, dtype), "sum", dim)


@lowers(A.cumprod.default)
def _cumprod(b: OpBuilder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    return scan(b, _summable(b, x, dtype), "prod", dim)


@lowers(A.logcumsumexp.default)
def _logcumsumexp(b: OpBuilder, x: Value, dim: int) -> Value:
    return scan(b, b.floating(x), "logsumexp", dim)


@lowers(A.cummax.default)
def _cummax(b: OpBuilder, x: Value, dim: int) -> list[Value]:
    return _running_extreme(b, x, "max", dim)


@lowers(A.cummin.default)
def _cummin(b: OpBuilder, x: Value, dim: int) -> list[Value]:
    return _running_extreme(b, x, "min", dim)


def _running_extreme(b: OpBuilder, x: Value, how: str, dim: int) -> list[Value]:
    """Values, and the place of the last element so far that equals them; a NaN stays."""
    if b.rank(x) == 0:
        return [x, b.full([], 0, "i64")]
    best, d = scan(b, x, how, dim), b.dim(x, dim)
    hit = b.ew(ew.Eq, x, best)
    if b.dtype(x).is_float:
        hit = b.ew(ew.Or, hit, b.op(ew.IsNan, [x]))
    return [best, scan(b, b.select(hit, b.iota(b.shape(x), d, "i64"), 0), "max", d)]


@lowers(A.diff.default)
def _diff(b: OpBuilder, x: Value, n: int = 1, dim: int = -1, prepend: Value | None = None, append: Value | None = None) -> Value:
    if n == 0:  # what would come before and after it is ignored
        return x
    d = b.dim(x, dim)
    x = b.concat([v for v in (prepend, x, append) if v is not None], d)
    for _ in range(n):
        size = b.dims.fold(sympy.Max(b.shape(x)[d] - 1, 0))
        late, early = b.slice(x, d, b.size(b.shape(x)[d] - size), size), b.slice(x, d, 0, size)
        x = b.ew(ew.Ne, late, early) if b.dtype(x).is_bool else b.sub(late, early)
    return x
