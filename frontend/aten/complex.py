"""Complex tensors: a pair of real ones from here on; the dialect's kernels see only floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dhlo.errors import CompileError
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.registry import COMPLEX, LOWERINGS, lowers
from dhlo.ops import elementwise as ew
from dhlo.ops import sequence

A: Any = torch.ops.aten


@dataclass(frozen=True)
class Complex:
    """Real and imaginary part, of one shape and dtype."""

    re: Value
    im: Value


def _on_complex(*ops: Any) -> Callable[[Any], Any]:
    """Registers the rule that applies where an argument is complex."""

    def register(f: Any) -> Any:
        for op in ops:
            COMPLEX[op] = f
        return f

    return register


def _parts(b: OpBuilder, x: Operand) -> tuple[Operand, Operand]:
    if isinstance(x, Complex):
        return x.re, x.im
    if isinstance(x, complex):
        return x.real, x.imag
    return x, 0.0


# ---------------------------------------------------------------------------------------------------- in and out
@lowers(A.polar.default)
def _polar(b: OpBuilder, radius: Value, angle: Value) -> Complex:
    return Complex(b.mul(radius, b.unary(ew.Cos, angle)), b.mul(radius, b.unary(ew.Sin, angle)))


@lowers(A.complex.default)
def _complex(b: OpBuilder, re: Value, im: Value) -> Complex:
    return Complex(*b.together(re, im))


@lowers(A.view_as_complex.default)
def _view_as_complex(b: OpBuilder, x: Value) -> Complex:
    d = b.rank(x) - 1
    return Complex(b.pick(x, d, 0), b.pick(x, d, 1))


@_on_complex(A.view_as_real.default)
def _view_as_real(b: OpBuilder, x: Complex) -> Value:
    d = b.rank(x.re)
    return b.concat([b.unsqueeze(x.re, d), b.unsqueeze(x.im, d)], d)


@_on_complex(A.real.default)
def _real(b: OpBuilder, x: Complex) -> Value:
    return x.re


@_on_complex(A.imag.default)
def _imag(b: OpBuilder, x: Complex) -> Value:
    return x.im


@lowers(A.real.default)
def _real_of_real(b: OpBuilder, x: Value) -> Value:
    return x


@_on_complex(A.select.int)
def _select(b: OpBuilder, x: Complex, dim: int, index: Any) -> Complex:
    f = LOWERINGS[A.select.int]
    return Complex(f(b, x.re, dim, index), f(b, x.im, dim, index))


# ---------------------------------------------------------------------------------------------------- arithmetic
@_on_complex(A.add.Tensor)
def _add(b: OpBuilder, x: Operand, y: Operand, alpha: Any = 1) -> Complex:
    (a, c), (d, e) = _parts(b, x), _parts(b, _mul(b, y, alpha) if alpha != 1 else y)
    return Complex(*b.together(b.add(a, d), b.add(c, e)))


@_on_complex(A.sub.Tensor)
def _sub(b: OpBuilder, x: Operand, y: Operand) -> Complex:
    (a, c), (d, e) = _parts(b, x), _parts(b, y)
    return Complex(*b.together(b.sub(a, d), b.sub(c, e)))


@_on_complex(A.mul.Tensor, A.mul.Scalar)
def _mul(b: OpBuilder, x: Operand, y: Operand) -> Complex:
    if not isinstance(x, Complex):
        x, y = y, x
    if not isinstance(y, Complex | complex):
        return Complex(b.mul(x.re, y), b.mul(x.im, y))
    (a, c), (d, e) = _parts(b, x), _parts(b, y)
    return Complex(b.sub(b.mul(a, d), b.mul(c, e)), b.add(b.mul(a, e), b.mul(c, d)))


@_on_complex(A.div.Tensor)
def _div(b: OpBuilder, x: Operand, y: Operand) -> Complex:
    if not isinstance(y, Complex):
        return Complex(b.div(x.re, y), b.div(x.im, y))
    size = b.add(b.mul(y.re, y.re), b.mul(y.im, y.im))
    z = _mul(b, Complex(y.re, b.op(ew.Neg, [y.im])), x)
    return Complex(b.div(z.re, size), b.div(z.im, size))


@_on_complex(A.abs.default)
def _abs(b: OpBuilder, x: Complex) -> Value:
    return b.unary(ew.Sqrt, b.add(b.mul(x.re, x.re), b.mul(x.im, x.im)))


@_on_complex(A.angle.default)
def _angle(b: OpBuilder, x: Complex) -> Value:
    return b.op(ew.Atan2, [x.im, x.re])


@_on_complex(A.conj.default, A._conj.default, A.conj_physical.default, A._conj_physical.default)
def _conj(b: OpBuilder, x: Complex) -> Complex:
    return Complex(x.re, b.op(ew.Neg, [x.im]))


@_on_complex(A.exp.default)
def _exp(b: OpBuilder, x: Complex) -> Complex:
    z: Complex = _polar(b, b.unary(ew.Exp, x.re), x.im)
    return z


# ---------------------------------------------------------------------------------------------------- by parts
def _register_by_parts() -> None:
    def rule(op: Any) -> Any:
        def f(b: OpBuilder, *args: Any, **kwargs: Any) -> Any:
            def half(i: int) -> Any:
                pick: Any = lambda x: _parts(b, x)[i] if isinstance(x, Complex) else x
                return LOWERINGS[op](
                    b, *[[pick(v) for v in a] if isinstance(a, list | tuple) else pick(a) for a in args], **kwargs
                )

            re, im = half(0), half(1)
            if isinstance(re, list | tuple):
                return [Complex(p, q) for p, q in zip(re, im, strict=True)]
            return Complex(re, im)

        return f

    for op in (
        A.view.default,
        A.reshape.default,
        A.unsqueeze.default,
        A.squeeze.dim,
        A.squeeze.default,
        A.transpose.int,
        A.permute.default,
        A.expand.default,
        A.slice.Tensor,
        A.clone.default,
        A.contiguous.default,
        A.cat.default,
        A.stack.default,
        A.index.Tensor,
        A.index_select.default,
        A.neg.default,
        A.sum.dim_IntList,
        A.mean.dim,
        A.flatten.using_ints,
        A.unbind.int,
        A.detach.default,
        A.alias.default,
        A.roll.default,
        A.flip.default,
        A.repeat.default,
        A.lift_fresh_copy.default,
        A.to.device,
        A.split.Tensor,
        A.chunk.default,
        A.resolve_conj.default,
    ):
        COMPLEX[op] = rule(op)


_register_by_parts()


@_on_complex(A.to.dtype, A.to.dtype_layout, A._to_copy.default)
def _to(b: OpBuilder, x: Complex, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    dtype = next((a for a in args if isinstance(a, torch.dtype)), dtype)
    if dtype is None or dtype == torch.complex64:
        return x
    if dtype.is_complex:
        raise CompileError("complex tensors are complex64 only")
    return b.convert(x.re, dtype)


# ---------------------------------------------------------------------------------------------------- Fourier
def _transform(b: OpBuilder, x: Operand, size: Any, dims: Sequence[int], norm: str | None, inverse: bool) -> Complex:
    if size is not None and any(
        s is not None and s != -1 for s in (size if isinstance(size, list | tuple) else [size])
    ):
        raise CompileError(
            "Fourier transforms of a size of their own are not supported", hint="pad or slice the input first"
        )
    re, im = (x.re, x.im) if isinstance(x, Complex) else (b.floating(x), None)
    im = b.full(b.shape(re), 0, b.dtype(re)) if im is None else im
    dims = [b.dim(re, d) for d in dims]
    re, im = b.op(sequence.Fft, [re, im], {"dims": dims, "inverse": inverse})
    norm = norm or "backward"
    count = b.count(re, dims)
    if norm == "ortho":
        scale = b.unary(ew.Rsqrt, b.full([], count, "f32"))
        return Complex(b.mul(re, scale), b.mul(im, scale))
    if (norm == "forward") != inverse:
        return Complex(b.div(re, count), b.div(im, count))
    return Complex(re, im)


def _register_fourier() -> None:
    def many(inverse: bool, default: list[int] | None = None) -> Any:
        def f(b: OpBuilder, x: Operand, s: Any = None, dim: Any = None, norm: str | None = None) -> Complex:
            rank = b.rank(x.re if isinstance(x, Complex) else x)
            return _transform(b, x, s, dim or default or list(range(rank)), norm, inverse)

        return f

    def one(inverse: bool) -> Any:
        def f(b: OpBuilder, x: Operand, n: Any = None, dim: int = -1, norm: str | None = None) -> Complex:
            return _transform(b, x, n, [dim], norm, inverse)

        return f

    for op, f in (
        (A.fft_fftn.default, many(False)),
        (A.fft_ifftn.default, many(True)),
        (A.fft_fft2.default, many(False, [-2, -1])),
        (A.fft_ifft2.default, many(True, [-2, -1])),
        (A.fft_fft.default, one(False)),
        (A.fft_ifft.default, one(True)),
    ):
        lowers(op)(f)
        COMPLEX[op] = f


_register_fourier()
