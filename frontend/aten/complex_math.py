"""Functions and conditions of complex numbers, by their real and imaginary parts.

Inverse functions are Kahan's ("Branch cuts for complex elementary functions", 1987): nothing cancels, and the signs of zeros choose
the side of a branch cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dhlo.frontend.aten.complex import Complex, on_complex, parts_of
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import COMPLEX, LOWERINGS, into
from dhlo.ir.ops import elementwise as ew

__all__ = ["angle_of", "exp_of", "in_double", "log_of", "magnitude", "plus", "rule_of", "times", "with_parts"]


def rule_of(op: Any) -> Callable[..., Any]:
    """The rule of complex numbers for an operator."""
    return COMPLEX[op]


def magnitude(b: OpBuilder, x: Complex) -> Value:
    return rule_of(A.abs.default)(b, x)


def angle_of(b: OpBuilder, x: Complex) -> Value:
    return rule_of(A.angle.default)(b, x)


def plus(b: OpBuilder, x: Operand, y: Operand) -> Complex:
    z: Complex = rule_of(A.add.Tensor)(b, x, y)
    return z


def times(b: OpBuilder, x: Operand, y: Operand) -> Complex:
    z: Complex = rule_of(A.mul.Tensor)(b, x, y)
    return z


def _neg(b: OpBuilder, x: Value) -> Value:
    return b.op(ew.Neg, [x])


def _conj(b: OpBuilder, x: Complex) -> Complex:
    return Complex(x.re, _neg(b, x.im))


def _times_i(b: OpBuilder, x: Complex) -> Complex:
    return Complex(_neg(b, x.im), x.re)


def _over_i(b: OpBuilder, x: Complex) -> Complex:
    return Complex(x.im, _neg(b, x.re))


def exp_of(b: OpBuilder, x: Complex) -> Complex:
    z: Complex = rule_of(A.exp.default)(b, x)
    return z


def log_of(b: OpBuilder, x: Complex) -> Complex:
    z: Complex = rule_of(A.log.default)(b, x)
    return z


def _sqrt(b: OpBuilder, x: Complex) -> Complex:
    z: Complex = rule_of(A.sqrt.default)(b, x)
    return z


def with_parts(b: OpBuilder, x: Complex, part: str) -> Complex:
    """With parts of that dtype."""
    return Complex(b.convert(x.re, part), b.convert(x.im, part))


def in_double(f: Callable[..., Complex]) -> Callable[..., Complex]:
    """The rule in double precision, rounded at the end: of functions whose argument's error is multiplied by its size."""

    def rule(b: OpBuilder, x: Operand, *args: Any, **kwargs: Any) -> Complex:
        whole = [a for a in (x, *args) if isinstance(a, Complex)]
        part = max((b.dtype(v.re).name for v in whole), key=["f16", "f32", "f64"].index)
        wide = [with_parts(b, a, "f64") if isinstance(a, Complex) else a for a in (x, *args)]
        return with_parts(b, f(b, *wide, **kwargs), part)

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
    return Complex(b.op(ew.Atan2, [x.re, times(b, p, q).re]), b.unary(ew.Asinh, times(b, _conj(b, p), q).im))


def _acos(b: OpBuilder, x: Complex) -> Complex:
    p, q = _sqrt(b, _one_minus(b, x)), _sqrt(b, _one_plus(b, x))
    return Complex(b.mul(b.op(ew.Atan2, [p.re, q.re]), 2.0), b.unary(ew.Asinh, times(b, _conj(b, q), p).im))


def _acosh(b: OpBuilder, x: Complex) -> Complex:
    p, q = _sqrt(b, Complex(b.sub(x.re, 1.0), x.im)), _sqrt(b, _one_plus(b, x))
    return Complex(b.unary(ew.Asinh, times(b, _conj(b, p), q).re), b.mul(b.op(ew.Atan2, [p.im, q.re]), 2.0))


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
    far = log_of(b, _one_plus(b, x))
    return Complex(b.select(small, near, far.re), far.im)


@on_complex(A.expm1.default)
def _expm1(b: OpBuilder, x: Complex) -> Complex:
    half = b.unary(ew.Sin, b.mul(x.im, 0.5))
    re = b.sub(b.mul(b.unary(ew.Expm1, x.re), b.unary(ew.Cos, x.im)), b.mul(b.mul(half, half), 2.0))
    return Complex(re, b.mul(b.unary(ew.Exp, x.re), b.unary(ew.Sin, x.im)))


on_complex(A.log2.default)(lambda b, x: times(b, log_of(b, x), 1 / math.log(2)))
on_complex(A.log10.default)(lambda b, x: times(b, log_of(b, x), 1 / math.log(10)))
on_complex(A.exp2.default)(lambda b, x: exp_of(b, times(b, x, math.log(2))))
on_complex(A.rsqrt.default)(lambda b, x: rule_of(A.reciprocal.default)(b, _sqrt(b, x)))
on_complex(A.sigmoid.default)(lambda b, x: _sigmoid(b, x))
on_complex(A.silu.default)(lambda b, x: times(b, x, _sigmoid(b, x)))


def _sigmoid(b: OpBuilder, x: Complex) -> Complex:
    z: Complex = rule_of(A.reciprocal.default)(b, _one_plus(b, exp_of(b, Complex(_neg(b, x.re), _neg(b, x.im)))))
    return z


@on_complex(A.sinc.default)
def _sinc(b: OpBuilder, x: Complex) -> Complex:
    zero = b.ew(ew.And, b.ew(ew.Eq, x.re, 0.0), b.ew(ew.Eq, x.im, 0.0))
    turned = times(b, Complex(b.select(zero, 1.0, x.re), x.im), math.pi)
    y: Complex = rule_of(A.div.Tensor)(b, _FUNCTIONS["sin"](b, turned), turned)
    return Complex(b.select(zero, 1.0, y.re), b.select(zero, 0.0, y.im))


@in_double
def _power(b: OpBuilder, x: Operand, y: Operand) -> Complex:
    """exp(y log x), as C has it: of 0 it is 0, infinite or no number, by the sign of y's real part."""
    (p, q), (r, s) = parts_of(b, x), parts_of(b, y)
    p, q = b.together(p, q, dtype="f64") if b.is_tensor(p) else (b.full([], p, "f64"), b.full([], q, "f64"))
    zero = b.ew(ew.And, b.ew(ew.Eq, p, 0.0), b.ew(ew.Eq, q, 0.0))
    log = log_of(b, Complex(b.select(zero, 1.0, p), b.select(zero, 0.0, q)))
    z = exp_of(b, times(b, log, Complex(*b.together(r, s, dtype="f64")) if b.is_tensor(r) else y))
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
        z = times(b, z, x)
    return rule_of(A.reciprocal.default)(b, z) if small < 0 else z


@on_complex(A.float_power.Tensor_Tensor, A.float_power.Scalar, A.float_power.Tensor_Scalar)
def _float_power(b: OpBuilder, x: Operand, y: Operand) -> Any:
    wide = [with_parts(b, v, "f64") if isinstance(v, Complex) else b.convert(v, "f64") if b.is_tensor(v) else v for v in (x, y)]
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
            return LOWERINGS[op](b, *[rule_of(A.ne.Scalar)(b, a, 0) if isinstance(a, Complex) else a for a in args], **kwargs)

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
