"""Discrete Fourier transforms of complex and real tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from dhlo.frontend.aten.complex import Complex
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.registry import COMPLEX, lowers
from dhlo.ops import elementwise as ew
from dhlo.ops import sequence
from dhlo.shape_infer.symbols import as_expr

A: Any = torch.ops.aten
P: Any = torch.ops.prims


def _shape(b: OpBuilder, x: Operand) -> list[Any]:
    return b.shape(x.re if isinstance(x, Complex) else x)


def _parts(b: OpBuilder, x: Operand) -> tuple[Value, Value]:
    """Real and imaginary part, in f32 or f64."""
    if isinstance(x, Complex):
        return x.re, x.im
    re = b.floating(x)
    re = re if b.dtype(re).bytes >= 4 else b.convert(re, "f32")
    return re, b.full(b.shape(re), 0, b.dtype(re))


def _each(b: OpBuilder, x: Operand, f: Any) -> Operand:
    """A function of real tensors on both parts."""
    return Complex(f(x.re), f(x.im)) if isinstance(x, Complex) else f(x)


def _resized(b: OpBuilder, x: Operand, dim: int, size: Any) -> Operand:
    """Cut or padded by zeros to `size` elements of a dim."""
    own = _shape(b, x)[dim]
    if b.dims.equal(own, as_expr(size)):
        return x
    both = b.size(sympy.Min(own, as_expr(size)))
    more = [as_expr(size) - both if d == dim else as_expr(0) for d in range(len(_shape(b, x)))]
    return _each(b, x, lambda v: b.pad(b.slice(v, dim, 0, both), [as_expr(0)] * len(more), more, 0.0))


def _scaled(b: OpBuilder, z: Complex, count: Any, power: str) -> Complex:
    """z, or divided by the count of elements or by its root."""
    if power == "none":
        return z
    by = b.full([], count, b.dtype(z.re))
    by = b.unary(ew.Sqrt, by) if power == "root" else by
    return Complex(b.div(z.re, by), b.div(z.im, by))


def transform(b: OpBuilder, x: Operand, dims: Sequence[int], inverse: bool, power: str) -> Complex:
    """Transform of all `dims`, scaled as `power` says."""
    re, im = _parts(b, x)
    if not dims:
        return Complex(re, im)
    z = Complex(*b.op(sequence.Fft, [re, im], {"dims": [b.dim(re, d) for d in dims], "inverse": inverse}))
    return _scaled(b, z, b.count(re, [b.dim(re, d) for d in dims]), power)


def half(b: OpBuilder, z: Complex, dim: int) -> Complex:
    """The part of a real tensor's transform that isn't redundant."""
    n = FloorDiv(b.shape(z.re)[dim], 2) + 1
    return Complex(b.slice(z.re, dim, 0, n), b.slice(z.im, dim, 0, n))


def to_real(b: OpBuilder, x: Operand, dims: Sequence[int], size: Any, inverse: bool, power: str) -> Value:
    """Transform of what is half of a Hermitian spectrum along the last of `dims`, where the result has `size` elements."""
    re, im = _parts(b, x)
    *others, last = [b.dim(re, d) for d in dims]
    z = transform(b, Complex(re, im), others, inverse, "none")
    z = _resized(b, z, last, FloorDiv(as_expr(size), 2) + 1)
    k = b.iota([size], 0, "i64")
    mirrored = b.ew(ew.Gt, k, FloorDiv(as_expr(size), 2))
    at = b.select(mirrored, b.sub(size, k), k)
    sign = b.select(mirrored, -1.0, 1.0, dtype=b.dtype(re))
    sign = b.reshape(sign, [as_expr(size) if d == last else 1 for d in range(b.rank(re))])
    z = Complex(b.take(z.re, [at], [last], last), b.mul(b.take(z.im, [at], [last], last), sign))
    z = transform(b, z, [last], inverse, "none")
    return _scaled(b, z, b.count(z.re, [*others, last]), power).re


def _power(norm: str | None, inverse: bool) -> str:
    norm = norm or "backward"
    return "root" if norm == "ortho" else "all" if (norm == "forward") != inverse else "none"


_POWERS = ("none", "root", "all")  # of ATen's own transforms, by number


def _register() -> None:
    def many(inverse: bool, default: list[int] | None, kind: str) -> Any:
        def f(b: OpBuilder, x: Operand, s: Any = None, dim: Any = None, norm: str | None = None) -> Operand:
            rank = len(_shape(b, x))
            dims = dim or default or list(range(rank if s is None else rank - len(s), rank) if s else range(rank))
            return _general(b, x, s or [None] * len(dims), dims, norm, inverse, kind)

        return f

    def one(inverse: bool, kind: str) -> Any:
        def f(b: OpBuilder, x: Operand, n: Any = None, dim: int = -1, norm: str | None = None) -> Operand:
            return _general(b, x, [n], [dim], norm, inverse, kind)

        return f

    for name, inverse, kind in (("fft", False, "full"), ("ifft", True, "full"), ("rfft", False, "half"), ("irfft", True, "real")):
        for op, f in (
            (getattr(A, f"fft_{name}").default, one(inverse, kind)),
            (getattr(A, f"fft_{name}2").default, many(inverse, [-2, -1], kind)),
            (getattr(A, f"fft_{name}n").default, many(inverse, None, kind)),
        ):
            lowers(op)(f)
            COMPLEX[op] = f


def _general(
    b: OpBuilder, x: Operand, sizes: Sequence[Any], dims: Sequence[int], norm: str | None, inverse: bool, kind: str
) -> Operand:
    rank, power = len(_shape(b, x)), _power(norm, inverse)
    dims = [d % rank for d in dims]
    out = None
    if kind == "real":  # the last size is the result's
        own = _shape(b, x)[dims[-1]]
        out = 2 * (own - 1) if sizes[-1] in (None, -1) else sizes[-1]
        sizes = [*sizes[:-1], None]
    for d, s in zip(dims, sizes, strict=True):
        x = x if s is None or s == -1 else _resized(b, x, d, s)
    if kind == "real":
        return to_real(b, x, dims, out, inverse, power)
    z = transform(b, x, dims, inverse, power)
    return half(b, z, dims[-1]) if kind == "half" else z


_register()


@lowers(A._fft_r2c.default)
def _r2c(b: OpBuilder, x: Value, dims: Sequence[int], normalization: int, onesided: bool) -> Complex:
    z = transform(b, x, dims, False, _POWERS[normalization])
    return half(b, z, b.dim(x, dims[-1])) if onesided else z


def _c2c(b: OpBuilder, x: Operand, dims: Sequence[int], normalization: int, forward: bool) -> Complex:
    return transform(b, x, dims, not forward, _POWERS[normalization])


def _c2r(b: OpBuilder, x: Operand, dims: Sequence[int], normalization: int, size: Any) -> Value:
    return to_real(b, x, dims, size, True, _POWERS[normalization])


def _prim_c2c(b: OpBuilder, x: Operand, *, dim: Sequence[int], forward: bool) -> Complex:
    return transform(b, x, dim, not forward, "none")


def _prim_c2r(b: OpBuilder, x: Operand, *, dim: Sequence[int], last_dim_size: Any) -> Value:
    return to_real(b, x, dim, last_dim_size, True, "none")


@lowers(P.fft_r2c.default)
def _prim_r2c(b: OpBuilder, x: Value, *, dim: Sequence[int], onesided: bool) -> Any:
    return _r2c(b, x, dim, 0, onesided)


_NATIVE: dict[Any, Any] = {
    P.fft_c2c.default: _prim_c2c,
    P.fft_c2r.default: _prim_c2r,
    A._fft_c2c.default: _c2c,
    A._fft_c2r.default: _c2r,
}
for _op, _rule in _NATIVE.items():
    lowers(_op)(_rule)
    COMPLEX[_op] = _rule
