"""Distinct values and rows, of a whole tensor or of its runs, with where each element went and how often each occurs."""

from __future__ import annotations

import sympy

from dhlo.frontend.aten.indexing import nonzero, scatter
from dhlo.frontend.aten.reduction import scan
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import lookup
from dhlo.ir.symbols import symbol
from dhlo.ir.types import TensorType


@lowers(A._unique2.default, A._unique.default)
def _unique2(b: OpBuilder, x: Value, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> list[Value]:
    name = b.importer.symbol_name()
    b.dims.count(name)
    n = symbol(name)
    types = [TensorType.of(b.dtype(x), [n]), TensorType.of("i64", b.shape(x)), TensorType.of("i64", [n])]
    out = list(b.op(lookup.Unique, [x], {"symbol": name}, types))
    b.importer.check_symbol(name)
    return [b.restate(y) for y in out]


@lowers(A.unique_consecutive.default)
def _unique_consecutive(
    b: OpBuilder, x: Value, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> list[Value]:
    if dim is not None:
        d = b.dim(x, dim)
        first, run, counts = _runs(b, _rows(b, x, d))
        return [b.take(x, [first], [d], d), run, counts]
    first, run, counts = _runs(b, b.reshape(x, [b.type(x).numel, 1]))
    return [b.take(b.reshape(x, [b.type(x).numel]), [first], [0], 0), b.reshape(run, b.shape(x)), counts]


@lowers(A.unique_dim_consecutive.default)
def _unique_dim_consecutive(
    b: OpBuilder, x: Value, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> list[Value]:
    out: list[Value] = _unique_consecutive(b, x, dim=dim)
    return out


@lowers(A.unique_dim.default)
def _unique_dim(
    b: OpBuilder,
    x: Value,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> list[Value]:
    d = b.dim(x, dim)
    rows = _rows(b, x, d)
    order = b.op(lookup.LexSort, [rows])
    first, run, counts = _runs(b, b.take(rows, [order], [0], 0))
    inverse = scatter(b, b.full(b.shape(order), 0, "i64"), [order], run, [0], 0, "set")
    return [b.take(x, [b.take(order, [first], [0], 0)], [d], d), inverse, counts]


def _rows(b: OpBuilder, x: Value, d: int) -> Value:
    """[n, everything else], with dim d first."""
    n = b.shape(x)[d]
    others = [s for k, s in enumerate(b.shape(x)) if k != d]
    x = b.transpose(x, [d, *(k for k in range(b.rank(x)) if k != d)])
    return b.reshape(x, [n, sympy.prod(others)])


def _runs(b: OpBuilder, rows: Value) -> tuple[Value, Value, Value]:
    """Of the runs of equal neighbours among rows [n, m]: the position of each run's first row, the number of each row's
    run, and how long each run is (all i64)."""
    n = b.shape(rows)[0]
    here = b.iota([n], 0, "i64")
    before = b.take(rows, [b.maximum(b.sub(here, 1), 0)], [0], 0)
    new = b.ew(ew.Or, b.reduce(b.ew(ew.Ne, rows, before), "any", [1]), b.ew(ew.Eq, here, 0))
    first = b.pick(nonzero(b, new), 1, 0)
    run = b.sub(scan(b, b.convert(new, "i64"), "sum", 0), 1)
    counts = scatter(b, b.full(b.shape(first), 0, "i64"), [run], b.full([n], 1, "i64"), [0], 0, "add")
    return first, run, counts
