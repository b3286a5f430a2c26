"""Functions, reductions and sums of products of complex numbers, by their real and imaginary parts.

Inverse functions are Kahan's ("Branch cuts for complex elementary functions", 1987): nothing cancels, and the signs of zeros choose
the side of a branch cut."""

from __future__ import annotations

import cmath
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dhlo.errors import CompileError
from dhlo.frontend.aten import indexing
from dhlo.frontend.aten.complex import Complex, by_parts, on_complex, parts_of
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import COMPLEX, LOWERINGS, into
from dhlo.ir.ops import elementwise as ew


def _of(op: Any) -> Callable[..., Any]:
    """The rule of complex numbers for an operator."""
    return COMPLEX[op]


def _abs(b: OpBuilder, x: Complex) -> Value:
    return _of(A.abs.default)(b, x)


def _angle(b: OpBuilder, x: Complex) -> Value:
    return _of(A.angle.default)(b, x)


def _add(b: OpBuilder, x: Operand, y: Operand) -> Complex:
    z: Complex = _of(A.add.Tensor)(b, x, y)
    return z


def _mul(b: OpBuilder, x: Operand, y: Operand) -> Complex:
    z: Complex = _of(A.mul.Tensor)(b, x, y)
    return z


def _neg(b: OpBuilder, x: Value) -> Value:
    return b.op(ew.Neg, [x])


def _conj(b: OpBuilder, x: Complex) -> Complex:
    return Complex(x.re, _neg(b, x.im))


def _times_i(b: OpBuilder, x: Complex) -> Complex:
    return Complex(_neg(b, x.im), x.re)


def _over_i(b: OpBuilder, x: Complex) -> Complex:
    return Complex(x.im, _neg(b, x.re))


def _exp(b: OpBuilder, x: Complex) -> Complex:
    z: Complex = _of(A.exp.default)(b, x)
    return z


def _log(b: OpBuilder, x: Complex) -> Complex:
    z: Complex = _of(A.log.default)(b, x)
    return z


def _sqrt(b: OpBuilder, x: Complex) -> Complex:
    z: Complex = _of(A.sqrt.default)(b, x)
    return z


def _as(b: OpBuilder, x: Complex, part: str) -> Complex:
    """With parts of that dtype."""
    return Complex(b.convert(x.re, part), b.convert(x.im, part))


def _in_double(f: Callable[..., Complex]) -> Callable[..., Complex]:
    """The rule in double precision, rounded at the end: of functions whose argument's error is multiplied by its size."""

    def rule(b: OpBuilder, x: Operand, *args: Any, **kwargs: Any) -> Complex:
        whole = [a for a in (x, *args) if isinstance(a, Complex)]
        part = max((b.dtype(v.re).name for v in whole), key=["f16", "f32", "f64"].index)
        wide = [_as(b, a, "f64") if isinstance(a, Complex) else a for a in (x, *args)]
        return _as(b, f(b, *wide, **kwargs), part)

    return rule


# ---------------------------------------------------------------------------------------------------- trigonometry
def _circular(b: OpBuilder, x: Complex) -> tuple[Value, Value, Value, Value]:
    """Hyperbolic sine and cosine of the real part, sine and cosine of the imaginary one."""
    return b.unary(ew.Sinh, x.re), b.unary(ew.Cosh, x.re), b.unary(ew.Sin, x.im), b.unary(ew.Cos, x.im)


def _sinh(b: OpBuilder, x: Complex) -> Complex:
    sinh, cosh, sin, cos = _circular(b, x)
    return Complex(b.mul(sinh, cos), b.mul(cosh, sin))


def _cosh(b: OpBuilder, x: Complex) -> Complex:
    sinh, cosh, sin, cos = _circular(b, x)
    return Complex(b.mul(cosh, cos), b.mul(sinh, sin))


def _tanh(b: OpBuilder, x: Complex) -> Complex:
    """sinh cosh and sin cos over sinh^2 + cos^2; beyond where tanh is 1 by rounding, by e^-2|x|."""
    most = 11.0 if b.dtype(x.re).name != "f64" else 22.0
    far = b.ew(ew.Gt, b.op(ew.Abs, [x.re]), most)
    sinh, cosh, sin, cos = _circular(b, Complex(b.select(far, 0.0, x.re), x.im))
    size = b.add(b.mul(sinh, sinh), b.mul(cos, cos))
    half = b.unary(ew.Exp, b.mul(b.op(ew.Abs, [x.re]), -1.0))
    rest = b.mul(b.mul(b.mul(half, half), 4.0), b.mul(sin, cos))
    one = LOWERINGS[A.copysign.Tensor](b, b.full(b.shape(x.re), 1.0, b.dtype(x.re)), x.re)
    return Complex(b.select(far, one, b.div(b.mul(sinh, cosh), size)), b.select(far, rest, b.div(b.mul(sin, cos), size)))


def _one_minus(b: OpBuilder, x: Complex) -> Complex:
    return Complex(b.sub(1.0, x.re), _neg(b, x.im))


def _one_plus(b: OpBuilder, x: Complex) -> Complex:
    return Complex(b.add(x.re, 1.0), x.im)


def _asin(b: OpBuilder, x: Complex) -> Complex:
    p, q = _sqrt(b, _one_minus(b, x)), _sqrt(b, _one_plus(b, x))
    return Complex(b.op(ew.Atan2, [x.re, _mul(b, p, q).re]), b.unary(ew.Asinh, _mul(b, _conj(b, p), q).im))


def _acos(b: OpBuilder, x: Complex) -> Complex:
    p, q = _sqrt(b, _one_minus(b, x)), _sqrt(b, _one_plus(b, x))
    return Complex(b.mul(b.op(ew.Atan2, [p.re, q.re]), 2.0), b.unary(ew.Asinh, _mul(b, _conj(b, q), p).im))


def _acosh(b: OpBuilder, x: Complex) -> Complex:
    p, q = _sqrt(b, Complex(b.sub(x.re, 1.0), x.im)), _sqrt(b, _one_plus(b, x))
    return Complex(b.unary(ew.Asinh, _mul(b, _conj(b, p), q).re), b.mul(b.op(ew.Atan2, [p.im, q.re]), 2.0))


def _atanh(b: OpBuilder, x: Complex) -> Complex:
    size, copysign = b.op(ew.Abs, [x.re]), LOWERINGS[A.copysign.Tensor]
    away, square = b.sub(1.0, size), b.mul(x.im, x.im)
    ratio = b.div(b.mul(size, 4.0), b.add(b.mul(away, away), square))
    re = copysign(b, b.mul(b.unary(ew.Log1p, ratio), 0.25), x.re)
    return Complex(re, b.mul(b.op(ew.Atan2, [b.mul(x.im, 2.0), b.sub(b.mul(away, b.add(size, 1.0)), square)]), 0.5))


_FUNCTIONS: dict[str, Callable[[OpBuilder, Complex], Complex]] = {
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "asin": _asin,
    "acos": _acos,
    "acosh": _acosh,
    "atanh": _atanh,
    # of i times the number
    "sin": lambda b, x: _over_i(b, _sinh(b, _times_i(b, x))),
    "cos": lambda b, x: _cosh(b, _times_i(b, x)),
    "tan": lambda b, x: _over_i(b, _tanh(b, _times_i(b, x))),
    "asinh": lambda b, x: _over_i(b, _asin(b, _times_i(b, x))),
    "atan": lambda b, x: _over_i(b, _atanh(b, _times_i(b, x))),
}
for _name, _function in _FUNCTIONS.items():
    on_complex(getattr(A, _name).default)(_function)


# ---------------------------------------------------------------------------------------------------- powers
@on_complex(A.log1p.default)
def _log1p(b: OpBuilder, x: Complex) -> Complex:
    """Of small numbers half the logarithm of 1 + x (2 + x) + y^2."""
    small = b.ew(ew.Lt, b.maximum(b.op(ew.Abs, [x.re]), b.op(ew.Abs, [x.im])), 0.5)
    re, im = b.select(small, x.re, 0.0), b.select(small, x.im, 0.0)
    near = b.mul(b.unary(ew.Log1p, b.add(b.mul(re, b.add(re, 2.0)), b.mul(im, im))), 0.5)
    far = _log(b, _one_plus(b, x))
    return Complex(b.select(small, near, far.re), far.im)


@on_complex(A.expm1.default)
def _expm1(b: OpBuilder, x: Complex) -> Complex:
    half = b.unary(ew.Sin, b.mul(x.im, 0.5))
    re = b.sub(b.mul(b.unary(ew.Expm1, x.re), b.unary(ew.Cos, x.im)), b.mul(b.mul(half, half), 2.0))
    return Complex(re, b.mul(b.unary(ew.Exp, x.re), b.unary(ew.Sin, x.im)))


on_complex(A.log2.default)(lambda b, x: _mul(b, _log(b, x), 1 / math.log(2)))
on_complex(A.log10.default)(lambda b, x: _mul(b, _log(b, x), 1 / math.log(10)))
on_complex(A.exp2.default)(lambda b, x: _exp(b, _mul(b, x, math.log(2))))
on_complex(A.rsqrt.default)(lambda b, x: _of(A.reciprocal.default)(b, _sqrt(b, x)))
on_complex(A.sigmoid.default)(lambda b, x: _sigmoid(b, x))
on_complex(A.silu.default)(lambda b, x: _mul(b, x, _sigmoid(b, x)))


def _sigmoid(b: OpBuilder, x: Complex) -> Complex:
    z: Complex = _of(A.reciprocal.default)(b, _one_plus(b, _exp(b, Complex(_neg(b, x.re), _neg(b, x.im)))))
    return z


@on_complex(A.sinc.default)
def _sinc(b: OpBuilder, x: Complex) -> Complex:
    zero = b.ew(ew.And, b.ew(ew.Eq, x.re, 0.0), b.ew(ew.Eq, x.im, 0.0))
    turned = _mul(b, Complex(b.select(zero, 1.0, x.re), x.im), math.pi)
    y: Complex = _of(A.div.Tensor)(b, _FUNCTIONS["sin"](b, turned), turned)
    return Complex(b.select(zero, 1.0, y.re), b.select(zero, 0.0, y.im))


@_in_double
def _power(b: OpBuilder, x: Operand, y: Operand) -> Complex:
    """exp(y log x), as C has it: of 0 it is 0, infinite or no number, by the sign of y's real part."""
    (p, q), (r, s) = parts_of(b, x), parts_of(b, y)
    p, q = b.together(p, q, dtype="f64") if b.is_tensor(p) else (b.full([], p, "f64"), b.full([], q, "f64"))
    zero = b.ew(ew.And, b.ew(ew.Eq, p, 0.0), b.ew(ew.Eq, q, 0.0))
    log = _log(b, Complex(b.select(zero, 1.0, p), b.select(zero, 0.0, q)))
    z = _exp(b, _mul(b, log, Complex(*b.together(r, s, dtype="f64")) if b.is_tensor(r) else y))
    if b.is_tensor(r):
        up = b.ew(ew.Gt, r, 0.0)
        re = b.select(up, 0.0, b.select(b.ew(ew.Lt, r, 0.0), math.inf, math.nan, dtype="f64"), dtype="f64")
        im = b.select(up, 0.0, math.nan, dtype="f64")
    else:
        re, im = (0.0, 0.0) if r > 0 else (math.inf if r < 0 else math.nan, math.nan)
    return Complex(b.select(zero, re, z.re), b.select(zero, im, z.im))


@on_complex(A.pow.Tensor_Tensor, A.pow.Scalar, A.pow.Tensor_Scalar)
def _pow(b: OpBuilder, x: Operand, y: Operand) -> Any:
    small = next((k for k in (0, 1, 2, 3, 0.5, -1, -2) if y == k), None) if isinstance(y, int | float | complex) else None
    if small is None or not isinstance(x, Complex):
        real = next((v for v in (x, y) if b.is_tensor(v)), None)  # of a real tensor and a complex number
        if not isinstance(x, Complex) and not isinstance(y, Complex) and real is not None:
            x, y = (Complex(*parts_of(b, v)) if v is real else v for v in (x, y))
        return _power(b, x, y)
    if small == 0:
        return b.full(b.shape(x.re), 1, f"complex<{b.dtype(x.re)}>")
    z: Any = _sqrt(b, x) if small == 0.5 else x
    for _ in range(int(abs(small)) - 1):
        z = _mul(b, z, x)
    return _of(A.reciprocal.default)(b, z) if small < 0 else z


@on_complex(A.float_power.Tensor_Tensor, A.float_power.Scalar, A.float_power.Tensor_Scalar)
def _float_power(b: OpBuilder, x: Operand, y: Operand) -> Any:
    wide = [_as(b, v, "f64") if isinstance(v, Complex) else b.convert(v, "f64") if b.is_tensor(v) else v for v in (x, y)]
    return _pow(b, *wide)


# ---------------------------------------------------------------------------------------------------- conditions
@on_complex(A.isfinite.default)
def _isfinite(b: OpBuilder, x: Complex) -> Value:
    finite = LOWERINGS[A.isfinite.default]
    return b.ew(ew.And, finite(b, x.re), finite(b, x.im))


def _on_truth(*ops: Any) -> None:
    """Registers rules of operators that see whether numbers are 0."""

    def rule(op: Any) -> Callable[..., Any]:
        def f(b: OpBuilder, *args: Any, **kwargs: Any) -> Any:
            return LOWERINGS[op](b, *[_of(A.ne.Scalar)(b, a, 0) if isinstance(a, Complex) else a for a in args], **kwargs)

        return f

    for op in ops:
        into(COMPLEX, [op])(rule(op))


_on_truth(
    A.logical_not.default,
    A.logical_and.default,
    A.logical_or.default,
    A.logical_xor.default,
    A.all.default,
    A.all.dim,
    A.all.dims,
    A.any.default,
    A.any.dim,
    A.any.dims,
    A.count_nonzero.default,
    A.count_nonzero.dim_IntList,
    A.nonzero.default,
    A.nonzero_numpy.default,
    A.nonzero_static.default,
    A.argwhere.default,
    A.where.default,
)


# ---------------------------------------------------------------------------------------------------- reductions
@on_complex(A.linalg_vector_norm.default, A.norm.ScalarOpt_dim, A.norm.Scalar, A.norm.ScalarOpt_dim_dtype)  # one rule for all
def _vector_norm(b: OpBuilder, x: Complex, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Value:
    if dtype is not None:
        x = _as(b, x, b.as_dtype(dtype).register)
    return LOWERINGS[A.linalg_vector_norm.default](b, _abs(b, x), *args, **kwargs)


def _register_variances() -> None:
    """The variance of a complex number is that of its parts together."""

    def variance(op: Any, root: bool) -> Callable[..., Any]:
        def f(b: OpBuilder, x: Complex, *args: Any, **kwargs: Any) -> Any:
            both = [LOWERINGS[op](b, part, *args, **kwargs) for part in (x.re, x.im)]
            total = b.add(*both)
            return b.unary(ew.Sqrt, total) if root else total

        return f

    def with_mean(op: Any, root: bool) -> Callable[..., Any]:
        def f(b: OpBuilder, x: Complex, *args: Any, **kwargs: Any) -> Any:
            (p, m), (q, n) = (LOWERINGS[op](b, part, *args, **kwargs) for part in (x.re, x.im))
            total = b.add(p, q)
            return [b.unary(ew.Sqrt, total) if root else total, Complex(m, n)]

        return f

    for name in ("default", "dim", "correction"):
        var, both = getattr(A.var, name), getattr(A.var_mean, name)
        on_complex(var)(variance(var, False))
        on_complex(getattr(A.std, name))(variance(var, True))
        on_complex(both)(with_mean(both, False))
        on_complex(getattr(A.std_mean, name))(with_mean(both, True))


_register_variances()


def _multiplied(sizes: Callable[..., Value], angles: Callable[..., Value]) -> Callable[..., Complex]:
    """A product of many numbers: of their sizes, at the sum of their angles."""

    @_in_double
    def rule(b: OpBuilder, x: Complex) -> Complex:
        size, angle = sizes(b, _abs(b, x)), angles(b, _angle(b, x))
        return Complex(b.mul(size, b.unary(ew.Cos, angle)), b.mul(size, b.unary(ew.Sin, angle)))

    return rule


@on_complex(A.prod.default, A.prod.dim_int)
def _prod(b: OpBuilder, x: Complex, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    dims = b.dims_list(x.re, dim)
    made = _multiplied(lambda b, v: b.reduce(v, "prod", dims, keepdim), lambda b, v: b.reduce(v, "sum", dims, keepdim))(b, x)
    return made if dtype is None else _of(A._to_copy.default)(b, made, dtype=dtype)


@on_complex(A.cumprod.default)
def _cumprod(b: OpBuilder, x: Complex, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    sizes, angles = LOWERINGS[A.cumprod.default], LOWERINGS[A.cumsum.default]
    made = _multiplied(lambda b, v: sizes(b, v, dim), lambda b, v: angles(b, v, dim))(b, x)
    return made if dtype is None else _of(A._to_copy.default)(b, made, dtype=dtype)


def _below(b: OpBuilder, x: Complex, most: Value) -> tuple[Complex, Value]:
    """e^(x - most), and `most` as a number where it is none."""
    most = b.select(LOWERINGS[A.isfinite.default](b, most), most, 0.0)
    return _exp(b, Complex(b.sub(x.re, most), x.im)), most


@on_complex(A.logsumexp.default)
@_in_double
def _logsumexp(b: OpBuilder, x: Complex, dims: Any, keepdim: bool = False) -> Complex:
    over = b.dims_list(x.re, dims)
    z, most = _below(b, x, LOWERINGS[A.amax.default](b, x.re, over, True))
    log = _log(b, Complex(b.reduce(z.re, "sum", over, True), b.reduce(z.im, "sum", over, True)))
    log = Complex(b.add(log.re, most), log.im)
    return log if keepdim else Complex(b.squeeze(log.re, over), b.squeeze(log.im, over))


@on_complex(A.logcumsumexp.default)
@_in_double
def _logcumsumexp(b: OpBuilder, x: Complex, dim: int) -> Complex:
    d = [b.dim(x.re, dim)] if b.rank(x.re) else []
    z, most = _below(b, x, b.reduce(x.re, "max", d, True))
    sums: Complex = _of(A.cumsum.default)(b, z, dim)
    log = _log(b, sums)
    return Complex(b.add(log.re, most), log.im)


def _softmax(op: Any) -> Callable[..., Value]:
    """In a real dtype, which takes the real part; PyTorch has no other."""
    return lambda b, x, dim, dtype=None: LOWERINGS[op](b, b.convert(x.re, dtype or b.dtype(x.re)), dim)


for _op in (A.softmax.int, A.log_softmax.int):
    on_complex(_op)(_softmax(_op))


@on_complex(A.l1_loss.default)
def _l1_loss(b: OpBuilder, x: Operand, y: Operand, reduction: int = 1) -> Value:
    gap = _abs(b, _of(A.sub.Tensor)(b, x, y))
    return gap if reduction == 0 else LOWERINGS[(A.mean if reduction == 1 else A.sum).default](b, gap)


# ---------------------------------------------------------------------------------------------------- products
@on_complex(A.addbmm.default)
def _addbmm(b: OpBuilder, c: Operand, x: Operand, y: Operand, *, beta: Any = 1, alpha: Any = 1) -> Complex:
    z = _mul(b, _of(A.sum.dim_IntList)(b, _of(A.bmm.default)(b, x, y), [0]), alpha)
    return z if beta == 0 else _add(b, z, _mul(b, c, beta))


def _register_convolutions() -> None:
    def rule(op: Any) -> Callable[..., Complex]:
        def f(b: OpBuilder, x: Operand, w: Operand, bias: Operand = None, *args: Any, **kwargs: Any) -> Complex:
            conv = LOWERINGS[op]
            (p, q), (r, s) = parts_of(b, x), parts_of(b, w)
            c, d = (None, None) if bias is None else parts_of(b, bias)
            re = b.sub(conv(b, p, r, c, *args, **kwargs), conv(b, q, s, None, *args, **kwargs))
            return Complex(re, b.add(conv(b, p, s, d, *args, **kwargs), conv(b, q, r, None, *args, **kwargs)))

        return f

    transposed = A.conv_transpose1d.default, A.conv_transpose2d.input, A.conv_transpose3d.input
    for n in (A.conv1d, A.conv2d, A.conv3d):
        on_complex(n.default)(rule(n.default))
        on_complex(n.padding)(rule(n.padding))
    for op in (*transposed, A.convolution.default):
        on_complex(op)(rule(op))


_register_convolutions()


# ---------------------------------------------------------------------------------------------------- chosen elements
def _columns(b: OpBuilder, mask: Value) -> list[Value]:
    """The positions of a mask's true elements, dim by dim."""
    index = indexing.nonzero(b, mask)
    return [b.pick(index, 1, d) for d in range(b.rank(mask))]


@on_complex(A.where.self, A.where.ScalarOther, A.where.ScalarSelf, A.where.Scalar)
def _where(b: OpBuilder, where: Value, x: Operand, y: Operand) -> Complex:
    (p, q), (r, s) = parts_of(b, x), parts_of(b, y)
    return Complex(*b.together(b.select(where, p, r), b.select(where, q, s)))


@on_complex(A.masked_select.default)
def _masked_select(b: OpBuilder, x: Complex, mask: Value) -> Complex:
    shape = b.broadcast_shape(b.shape(x.re), b.shape(mask))
    parts = [b.expand(v, shape) for v in (x.re, x.im, mask)]
    *both, mask = parts if shape else [b.reshape(v, [1]) for v in parts]
    at = _columns(b, mask)  # once: their number is a symbol
    return Complex(*[b.take(v, at, list(range(b.rank(v))), 0) for v in both])


@on_complex(A.index.Tensor)
def _index(b: OpBuilder, x: Operand, index: Sequence[Value | None]) -> Complex:
    whole: list[Value | None] = []
    for i in index:
        whole += _columns(b, i) if i is not None and b.dtype(i).name in ("i1", "ui8") else [i]
    return Complex(*[LOWERINGS[A.index.Tensor](b, v, whole) for v in parts_of(b, x)])


# ---------------------------------------------------------------------------------------------------- by parts
@on_complex(A.constant_pad_nd.default)
def _constant_pad_nd(b: OpBuilder, x: Complex, pad: Sequence[Any], value: Any = 0) -> Complex:
    return Complex(
        *[LOWERINGS[A.constant_pad_nd.default](b, v, pad, c) for v, c in zip(parts_of(b, x), _number(value), strict=True)]
    )


@on_complex(A.pad.default)
def _pad(b: OpBuilder, x: Complex, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Complex:
    values = (None, None) if value is None else _number(value)
    return Complex(*[LOWERINGS[A.pad.default](b, v, pad, mode, c) for v, c in zip(parts_of(b, x), values, strict=True)])


def _number(x: Any) -> tuple[Any, Any]:
    return (x.real, x.imag) if isinstance(x, complex) else (x, 0)


@on_complex(A.broadcast_tensors.default, A.meshgrid.default, A.meshgrid.indexing)
def _together(b: OpBuilder, tensors: Sequence[Operand], *args: Any, **kwargs: Any) -> list[Operand]:
    """Real tensors stay real."""
    f = LOWERINGS[b.node.target]
    re, im = (f(b, [parts_of(b, x)[i] if isinstance(x, Complex) else x for x in tensors], *args, **kwargs) for i in (0, 1))
    return [Complex(p, q) if isinstance(x, Complex) else p for x, p, q in zip(tensors, re, im, strict=True)]


@on_complex(A.normal_functional.default)
def _normal(b: OpBuilder, x: Complex, mean: Any = 0.0, std: float = 1.0, **_: Any) -> Complex:
    """The parts have the same mean and half of the variance each."""
    normal = LOWERINGS[A.normal_functional.default]
    return Complex(*[normal(b, v, mean, std * math.sqrt(0.5)) for v in (x.re, x.im)])


def _like(op: Any, scale: float) -> Callable[..., Any]:
    """Random numbers of a tensor's shape, whose parts are scaled."""

    def f(b: OpBuilder, x: Complex, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        part = b.dtype(x.re) if dtype is None else b.as_dtype(dtype)
        if not (dtype is None or part.is_complex):
            return LOWERINGS[op](b, x.re, *args, dtype=dtype, **kwargs)
        real = b.as_dtype(part.register if part.is_complex else part).torch
        return Complex(*[b.mul(LOWERINGS[op](b, v, *args, dtype=real, **kwargs), scale) for v in (x.re, x.im)])

    return f


for _op in (A.rand_like.default, A.rand_like.generator):
    into(COMPLEX, [_op])(_like(_op, 1.0))
for _op in (A.randn_like.default, A.randn_like.generator):
    into(COMPLEX, [_op])(_like(_op, math.sqrt(0.5)))


@on_complex(A.feature_alpha_dropout.default)
def _feature_alpha_dropout(b: OpBuilder, x: Complex, p: float, train: bool) -> Complex:
    if train and p:
        raise CompileError("alpha dropout of complex numbers", hint="PyTorch has it of real ones only")
    return x


@on_complex(A._unsafe_masked_index.default)
def _unsafe_masked_index(b: OpBuilder, x: Complex, mask: Value, index: Any, fill: Any) -> Complex:
    f = LOWERINGS[A._unsafe_masked_index.default]
    return Complex(*[f(b, v, mask, index, c) for v, c in zip(parts_of(b, x), _number(fill), strict=True)])


@on_complex(A.scatter.reduce, A.scatter.value_reduce)
def _scatter(b: OpBuilder, x: Complex, dim: int, index: Value, source: Operand, *, reduce: str) -> Complex:
    """Sums by parts; products of sizes, at sums of angles."""
    put = functools.partial(LOWERINGS[A.scatter.reduce], b)
    if reduce == "add":
        return Complex(*[put(v, dim, index, w, reduce="add") for v, w in zip(parts_of(b, x), parts_of(b, source), strict=True)])
    if isinstance(source, Complex):
        factor, turn = _abs(b, source), _angle(b, source)
    elif b.is_tensor(source):
        factor, turn = b.op(ew.Abs, [source]), LOWERINGS[A.angle.default](b, source)
    else:
        factor, turn = abs(source), cmath.phase(source)
    sizes = put(_abs(b, x), dim, index, factor, reduce="multiply")
    polar: Complex = LOWERINGS[A.polar.default](b, sizes, put(_angle(b, x), dim, index, turn, reduce="add"))
    return polar


by_parts(
    A.uniform.default,
    A._unsafe_masked_index_put_accumulate.default,
    A.resize.default,
    A.resize_as.default,
    A._reshape_alias.default,
    A._unsafe_view.default,
    A._unsafe_index.Tensor,
    A.alias_copy.default,
    A.as_strided.default,
    A.as_strided_copy.default,
    A.as_strided_scatter.default,
    A.channel_shuffle.default,
    A.detach_copy.default,
    A.diag.default,
    A.diag_embed.default,
    A.expand_copy.default,
    A.fliplr.default,
    A.flipud.default,
    A.im2col.default,
    A.narrow_copy.default,
    A.permute_copy.default,
    A.pixel_shuffle.default,
    A.pixel_unshuffle.default,
    A.reflection_pad1d.default,
    A.reflection_pad2d.default,
    A.reflection_pad3d.default,
    A.repeat_interleave.self_int,
    A.replication_pad1d.default,
    A.replication_pad2d.default,
    A.replication_pad3d.default,
    A.rot90.default,
    A.select_copy.int,
    A.slice_copy.Tensor,
    A.split_copy.Tensor,
    A.split_with_sizes_copy.default,
    A.sum_to_size.default,
    A.take.default,
    A.take_along_dim.default,
    A.tensor_split.tensor_indices_or_sections,
    A.tile.default,
    A.trace.default,
    A.transpose_copy.int,
    A.trapezoid.dx,
    A.trapz.dx,
    A.unsafe_chunk.default,
    A.unsafe_split.Tensor,
    A.unsafe_split_with_sizes.default,
    A.view_copy.default,
)
by_parts(
    A.cartesian_prod.default,
    A.column_stack.default,
    A.concat.default,
    A.concatenate.default,
    A.diff.default,
    A.hstack.default,
    A.vstack.default,
    joins=True,
)
