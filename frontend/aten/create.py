"""Tensors out of nothing: constants, ranges, identity."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as tsf

from dhlo.errors import CompileError
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import VERSION
from dhlo.frontend.compat import aten as A
from dhlo.frontend.dims import static_value
from dhlo.frontend.promotion import promote, scalar_dtype
from dhlo.frontend.registry import lowers
from dhlo.ir.dtypes import DType
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import as_expr


def _filled(value: Any) -> Any:
    def rule(b: OpBuilder, size: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
        return b.full(size, value, b.as_dtype(dtype))

    return rule


def _filled_like(value: Any) -> Any:
    def rule(b: OpBuilder, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
        return b.full(b.shape(x), value, b.as_dtype(dtype, b.dtype(x)))

    return rule


def _filled_new(value: Any) -> Any:
    def rule(b: OpBuilder, x: Value, size: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
        return b.full(size, value, b.as_dtype(dtype, b.dtype(x)))

    return rule


lowers(A.zeros.default, A.empty.memory_format)(_filled(0))  # what `empty` holds is nobody's business
lowers(A.ones.default)(_filled(1))
lowers(A.zeros_like.default, A.empty_like.default)(_filled_like(0))
lowers(A.ones_like.default)(_filled_like(1))
lowers(A.new_zeros.default, A.new_empty.default)(_filled_new(0))
lowers(A.new_ones.default)(_filled_new(1))


@lowers(A.empty_permuted.default, A.empty_strided.default, A.new_empty_strided.default)
def _empty_permuted(b: OpBuilder, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if b.is_tensor(args[0]):
        return b.full(args[1], 0, b.as_dtype(dtype, b.dtype(args[0])))
    return b.full(args[0], 0, b.as_dtype(dtype))


@lowers(A.full.default)
def _full(b: OpBuilder, size: Any, value: Operand, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if b.is_tensor(value):
        return b.expand(b.convert(value, b.as_dtype(dtype, b.dtype(value))), size)
    return _rounded(b, size, value, b.as_dtype(dtype or scalar_dtype(value)))


def _rounded(b: OpBuilder, size: Any, value: Operand, dtype: DType) -> Value:
    """A number everywhere as a tensor of that dtype has it; `b.full` keeps its own precision, in which ATen's kernels compute."""
    if dtype.is_float and dtype.bits < 32:
        return b.convert(b.full(size, value, "f32"), dtype)
    return b.full(size, value, dtype)


@lowers(A.full_like.default)
def _full_like(b: OpBuilder, x: Value, value: Operand, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _full(b, b.shape(x), value, dtype=dtype or b.dtype(x).torch)


@lowers(A.new_full.default)
def _new_full(b: OpBuilder, x: Value, size: Any, value: Operand, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _full(b, size, value, dtype=dtype or b.dtype(x).torch)


@lowers(A.fill.Scalar, A.fill.Tensor)
def _fill(b: OpBuilder, x: Value, value: Operand) -> Value:
    return _full(b, b.shape(x), value, dtype=b.dtype(x).torch)


@lowers(A.zero.default)
def _zero(b: OpBuilder, x: Value) -> Value:
    return b.full(b.shape(x), 0, b.dtype(x))


@lowers(A.scalar_tensor.default)
def _scalar_tensor(b: OpBuilder, value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _rounded(b, [], value, b.as_dtype(dtype))


@lowers(A.copy.default)
def _copy(b: OpBuilder, x: Value, src: Value, non_blocking: bool = False) -> Value:
    return b.expand(b.convert(src, b.dtype(x)), b.shape(x))


# ---------------------------------------------------------------------------------------------------- ranges
def _is_int(x: Any) -> bool:
    return scalar_dtype(x) != torch.float32


def _length(b: OpBuilder, start: Any, end: Any, step: Any) -> Any:
    """How many elements a range has."""
    if all(isinstance(v, int) for v in (start, end, step)):  # beyond 2^53, too
        return max(-((start - end) // step), 0)
    if all(isinstance(v, int | float) for v in (start, end, step)):
        return max(math.ceil((end - start) / step), 0)
    if all(map(_is_int, (start, end, step))):
        start, end, step = map(as_expr, (start, end, step))
        if not step.is_number:
            return b.size(sympy.Max(tsf.CeilToInt(tsf.IntTrueDiv(end - start, step)), 0))
        if step < 0:
            start, end, step = end, start, -step
        size = end - start if step == 1 else tsf.FloorDiv(end - start + step - 1, step)
        return b.size(sympy.Max(size, 0))
    span = [as_expr(v) for v in (start, end, step)]
    return b.size(sympy.Max(tsf.CeilToInt((span[1] - span[0]) / span[2]), 0))


@lowers(A.arange.default)
def _arange(b: OpBuilder, end: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _arange_step(b, 0, end, 1, dtype=dtype)


@lowers(A.arange.start, A.arange.start_step)
def _arange_step(b: OpBuilder, start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    d = b.as_dtype(dtype) if dtype is not None else promote([torch_scalar(v) for v in (start, end, step)])
    if d.name == "i64" and VERSION < (2, 15):  # of other integers, and since then of all, the bounds count as they are
        start, end, step = map(_truncated, (start, end, step))
    n = _length(b, start, end, step)
    if d.is_int:
        start, step = map(_truncated, (start, step))
    wide = "i64" if d.is_bool else d
    return b.convert(b.iota([n], 0, wide, start, step), d)


def _truncated(v: Any) -> Any:
    """A number or expression as an integer."""
    v = static_value(v)
    if isinstance(v, sympy.Expr):
        return v if v.is_integer else tsf.TruncToInt(v)
    return int(v)


def torch_scalar(v: Any) -> Any:
    """A bound of a range as the scalar it counts as (bools are integers here)."""
    return int(v) if isinstance(v, bool) else v


@lowers(A.linspace.default)
def _linspace(b: OpBuilder, start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    d = b.as_dtype(dtype)
    if d.is_int:
        start, end = map(_truncated, (start, end))
    if isinstance(steps, int) and steps == 1:
        return b.full([1], start, d)
    work = d if d.is_float else "f64"
    n, start, end = as_expr(steps), _as_float(start), _as_float(end)
    i = b.iota([n], 0, "i64")
    if isinstance(steps, int) and isinstance(start, float) and isinstance(end, float):
        step = (end - start) / (steps - 1)
    else:
        step = tsf.FloatTrueDiv(as_expr(end) - as_expr(start), tsf.ToFloat(n - 1))
    up = b.add(b.mul(b.convert(i, work), step), start)
    down = b.sub(end, b.mul(b.convert(b.sub(n - 1, i), work), step))
    return b.convert(b.select(b.ew(ew.Lt, i, tsf.FloorDiv(n, 2)), up, down), d)


def _as_float(x: Any) -> Any:
    """A number or size expression as one of floating point."""
    if isinstance(x, sympy.Basic):
        return tsf.ToFloat(x) if x.is_integer else x
    return float(x)


@lowers(A.eye.default, A.eye.m)
def _eye(b: OpBuilder, n: Any, m: Any = None, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    shape = [n, n if m is None else m]
    return b.convert(b.op(ew.Eq, [b.iota(shape, 0, "i64"), b.iota(shape, 1, "i64")]), b.as_dtype(dtype))


@lowers(A.one_hot.default)
def _one_hot(b: OpBuilder, x: Value, classes: Any = -1) -> Value:
    if isinstance(classes, int) and classes < 0:
        raise CompileError("one_hot without num_classes has a data-dependent size", hint="pass num_classes")
    if b.dtype(x) != b.as_dtype(torch.int64):
        raise CompileError(f"one_hot of {b.dtype(x)}", hint="convert the classes to int64")
    b.need_all(b.ew(ew.And, b.ew(ew.Ge, x, 0), b.ew(ew.Lt, x, classes)), "one_hot: there is no such class")
    line = b.iota([classes], 0, b.dtype(x))
    return b.convert(b.ew(ew.Eq, b.unsqueeze(x, b.rank(x)), line), "i64")


def _register_windows() -> None:
    def window(terms: tuple[float, ...]) -> Any:
        """A sum of cosines: terms[0] - terms[1] cos(x) + terms[2] cos(2x)."""

        def rule(b: OpBuilder, n: Any, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
            periodic = args[0] if args and isinstance(args[0], bool) else True
            coefficients = list(args[1:]) or list(terms)
            d = b.as_dtype(dtype)
            length = as_expr(n) if periodic else sympy.Max(as_expr(n) - 1, 1)
            if n == 1:
                return b.full([1], 1, d)
            angle = b.mul(b.div(b.iota([n], 0, "f64"), b.full([], length, "f64")), 2 * math.pi)
            y = b.full([n], coefficients[0] if coefficients else terms[0], "f64")
            weights = [*coefficients[1:], *terms[1:]][: len(terms) - 1]
            for k, w in enumerate(weights):
                y = (b.add if k % 2 else b.sub)(y, b.mul(b.unary(ew.Cos, b.mul(angle, float(k + 1))), w))
            return b.convert(y, d)

        return rule

    for name, terms in (("hann", (0.5, 0.5)), ("hamming", (0.54, 0.46)), ("blackman", (0.42, 0.5, 0.08))):
        packet = getattr(A, f"{name}_window")
        lowers(*(getattr(packet, o) for o in packet.overloads() if "out" not in o))(window(terms))


_register_windows()


@lowers(A.bartlett_window.default, A.bartlett_window.periodic)
def _bartlett(b: OpBuilder, n: Any, periodic: bool = True, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if n == 1:
        return b.full([1], 1, b.as_dtype(dtype))
    length = as_expr(n) if periodic else sympy.Max(as_expr(n) - 1, 1)
    rising = b.mul(b.div(b.iota([n], 0, "f64"), b.full([], length, "f64")), 2.0)
    return b.convert(b.minimum(rising, b.sub(2.0, rising)), b.as_dtype(dtype))


@lowers(A.logspace.default)
def _logspace(
    b: OpBuilder, start: Any, end: Any, steps: Any, base: float = 10.0, *, dtype: torch.dtype | None = None, **_: Any
) -> Value:
    d = b.as_dtype(dtype)
    work = d if d.is_float else "f64"
    if d.is_int:
        start, end = map(_truncated, (start, end))
    line = _linspace(b, start, end, steps, dtype=b.as_dtype("f64").torch)
    return b.convert(b.convert(b.ew(ew.Pow, float(base), line), work), d)


def band(b: OpBuilder, x: Value, diagonal: Any, lower: bool) -> Value:
    """Keeps what lies on and below (or above) a diagonal of the last two dims."""
    shape = b.shape(x)[-2:]
    rows, cols = b.iota(shape, 0, "i64"), b.iota(shape, 1, "i64")
    keep = b.ew(ew.Le if lower else ew.Ge, cols, b.add(rows, diagonal))
    return b.select(b.expand(keep, b.shape(x)), x, 0, dtype=b.dtype(x))


@lowers(A.tril.default)
def _tril(b: OpBuilder, x: Value, diagonal: Any = 0) -> Value:
    return band(b, x, diagonal, True)


@lowers(A.triu.default)
def _triu(b: OpBuilder, x: Value, diagonal: Any = 0) -> Value:
    return band(b, x, diagonal, False)


def _triangle(make: Any, name: str) -> Any:
    """Rows and columns [2, n] of a triangle's elements, a constant."""

    def rule(b: OpBuilder, row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
        if not all(isinstance(n, int) for n in (row, col, offset)):
            raise CompileError("a triangle of dynamic size", hint="use nonzero() of tril() or triu() of ones")
        indices = make(row, col, offset, dtype=dtype or torch.int64)
        return b.importer.weight(f"{name}.{row}.{col}.{offset}.{b.as_dtype(indices.dtype).name}", indices)

    return rule


lowers(A.tril_indices.default)(_triangle(torch.tril_indices, "tril_indices"))
lowers(A.triu_indices.default)(_triangle(torch.triu_indices, "triu_indices"))


@lowers(A.meshgrid.indexing, A.meshgrid.default)
def _meshgrid(b: OpBuilder, xs: list[Value], *, indexing: str = "ij") -> list[Value]:
    shape = [b.shape(x)[0] if b.rank(x) else as_expr(1) for x in xs]
    order = list(range(len(xs)))
    if indexing == "xy" and len(xs) > 1:
        order[0], order[1] = 1, 0
    out = [shape[o] for o in order]
    return [b.expand(b.reshape(x, [s]), out, [order.index(i)]) for i, (x, s) in enumerate(zip(xs, shape, strict=True))]
