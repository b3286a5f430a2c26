"""The primitives that PyTorch's own decompositions are made of, where they aren't plain ATen operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dhlo.frontend.aten import complex_math, complex_reductions, create, elementwise, indexing, movement, strided  # noqa: F401  (what these are made of)
from dhlo.frontend.aten.complex import by_parts
from dhlo.frontend.aten.reduction import variance
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.compat import prims as P
from dhlo.frontend.registry import COMPLEX, LOWERINGS, lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import as_expr
from dhlo.ir.types import DTYPES

_SAME = (
    "abs acos acosh asin asinh atan atanh cos cosh erf erfc exp expm1 exp2 digamma floor ceil isfinite lgamma log log1p log2 log10 "
    "neg reciprocal round sign signbit sin sinh sqrt tan tanh trunc bitwise_not atan2 fmax fmin gcd nextafter conj conj_physical"
)
_SAME_TENSOR = "add sub mul eq ne lt le gt ge fmod remainder bitwise_and bitwise_or bitwise_xor copysign"
_RENAMED = {
    P.erf_inv.default: A.erfinv.default,
    P.bessel_i0.default: A.i0.default,
    P.bessel_i0e.default: A.special_i0e.default,
    P.bessel_i1.default: A.special_i1.default,
    P.bessel_i1e.default: A.special_i1e.default,
    P.erfcx.default: A.special_erfcx.default,
    P.where.default: A.where.self,
    P.shift_left.default: A.bitwise_left_shift.Tensor,
    P.shift_right_arithmetic.default: A.bitwise_right_shift.Tensor,
    P.transpose.default: A.permute.default,
    P.rev.default: A.flip.default,
    P.view_of.default: A.alias.default,
    P.clone.default: A.clone.default,
    P.scalar_tensor.default: A.scalar_tensor.default,
    P.cat.default: A.cat.default,
    P.maximum.default: A.maximum.default,
    P.minimum.default: A.minimum.default,
    P.pow.default: A.pow.Tensor_Tensor,
    P.rsqrt.default: A.rsqrt.default,
    P.as_strided.default: A.as_strided.default,
    P.as_strided_scatter.default: A.as_strided_scatter.default,
}


def _register() -> None:
    pairs = dict(_RENAMED)
    for names, overload in ((_SAME, "default"), (_SAME_TENSOR, "Tensor")):
        for name in names.split():
            if hasattr(P, name):
                pairs[getattr(P, name).default] = getattr(getattr(A, name), overload)
    for prim, op in pairs.items():
        if op in LOWERINGS:
            lowers(prim)(LOWERINGS[op])
        if op in COMPLEX:
            COMPLEX[prim] = COMPLEX[op]


_register()


@lowers(P.div.default)
def _div(b: OpBuilder, x: Value, y: Value) -> Value:
    """Of integers rounded to zero."""
    return b.div(x, y) if b.dtype(x).is_float else b.ew(ew.TruncDiv, x, y)


@lowers(P.broadcast_in_dim.default)
def _broadcast_in_dim(b: OpBuilder, x: Value, shape: Sequence[Any], dims: Sequence[int]) -> Value:
    return b.expand(x, shape, dims)


@lowers(P.squeeze.default)
def _squeeze(b: OpBuilder, x: Value, dims: Sequence[int]) -> Value:
    return b.squeeze(x, list(dims))


@lowers(P.collapse.default, P.collapse_view.default)
def _collapse(b: OpBuilder, x: Value, start: int, end: int) -> Value:
    return LOWERINGS[A.flatten.using_ints](b, x, start, end)


@lowers(P.split_dim.default)
def _split_dim(b: OpBuilder, x: Value, dim: int, outer: Any) -> Value:
    shape = b.shape(x)
    return b.reshape(x, [*shape[:dim], outer, b.size(shape[dim] / as_expr(outer)), *shape[dim + 1 :]])


@lowers(P.var.default)
def _var(b: OpBuilder, x: Value, dims: Sequence[int] | None, correction: float = 1, **_: Any) -> Value:
    return b.in_f32(lambda v: variance(b, v, b.dims_list(x, dims), correction, False)[0], x)


@lowers(P.iota.default)
def _iota(b: OpBuilder, length: Any, *, start: Any, step: Any, dtype: torch.dtype, **_: Any) -> Value:
    return b.iota([length], 0, b.as_dtype(dtype), start, step)


def _register_reductions() -> None:
    def rule(how: str) -> Any:
        def f(b: OpBuilder, x: Value, dims: Sequence[int] | None = None, **_: Any) -> Value:
            return b.reduce(x, how, b.dims_list(x, dims))

        return f

    for name, how in (("sum", "sum"), ("prod", "prod"), ("amax", "max"), ("amin", "min")):
        lowers(getattr(P, name).default)(rule(how))


_register_reductions()


COMPLEX[P.div.default] = COMPLEX[A.div.Tensor]
by_parts(
    P.broadcast_in_dim.default,
    P.squeeze.default,
    P.collapse.default,
    P.collapse_view.default,
    P.split_dim.default,
    P.sum.default,
)


@lowers(P.frexp.default, A.frexp.Tensor)
def _frexp(b: OpBuilder, x: Value) -> list[Value]:
    """Mantissa in [0.5, 1) and exponent (i32); zeros and what isn't finite have exponent 0."""
    dtype = b.dtype(x)
    wide = b.convert(x, "f32") if dtype.bytes < 4 else x
    name, fraction, bias = ("i32", 23, 126) if b.dtype(wide).name == "f32" else ("i64", 52, 1022)
    small = b.ew(ew.Lt, b.op(ew.Abs, [wide]), torch.finfo(b.dtype(wide).torch).tiny)
    normal = b.select(small, b.mul(wide, 2.0**fraction), wide)
    bits = b.op(ew.Bitcast, [normal], None, [b.type(normal).with_dtype(DTYPES[name])])
    field = (1 << (31 if name == "i32" else 63) - fraction) - 1
    exponent = b.sub(b.ew(ew.And, b.ew(ew.ShiftRight, bits, fraction), field), bias)
    exponent = b.sub(exponent, b.select(small, fraction, 0, dtype=name))
    mantissa = b.ew(ew.Or, b.ew(ew.And, bits, ~(field << fraction)), bias << fraction)
    mantissa = b.op(ew.Bitcast, [mantissa], None, [b.type(normal)])
    plain = b.ew(ew.Or, b.ew(ew.Eq, wide, 0.0), b.op(ew.Not, [LOWERINGS[A.isfinite.default](b, wide)]))
    exponent = b.convert(b.select(plain, 0, exponent, dtype=name), "i32")
    return [b.convert(b.select(plain, wide, mantissa), dtype), exponent]


@lowers(P.full.default)
def _full(b: OpBuilder, shape: Sequence[Any], value: Any, *, dtype: torch.dtype, **_: Any) -> Value:
    return b.full(shape, value, dtype)
