"""Powers."""

from __future__ import annotations

import math

from dhlo.codegen.elementwise.vmath_base import clamp, ldexp, magic_round, poly, pow2, register
from dhlo.codegen.elementwise.vmath_f64 import EXP64, LOG2E, mantissa
from dhlo.codegen.kernel_ir.builder import F32, F64, I32, I64, Fn, V

__all__: list[str] = []

# Of log2((1 + s) / (1 - s)) / s in s^2 for mantissas between the roots of 1/2 and of 2 (relative error 2^-37.8), and of 2^x for
# |x| <= 1/2 (2^-29): minimax.
_LOG2_SHORT = (0.34073010669082104, 0.41167271876779726, 0.5770835849751289, 0.9617966733416883, 2.8853900817900864)
_EXP2_OF_POWER = (
    *(0.00015345812158740183, 0.001339993120947414, 0.009618488956522791, 0.055503287769976636),
    *(0.24022646890639573, 0.6931472057372526, 1.0000000005541663),
)


# 2 / 3 in two parts; 2 / 5, 2 / 7, .. for squares of up to 0.0295.
_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
_ODD_TERMS = [2 / k for k in range(27, 3, -2)]


@register("pow", ulp=1.0, arity=2)
def _pow(f: Fn, x: V, y: V) -> V:
    # 2^(y log2 |x|) in f64, as far as f32 tells: numbers of f32 are normal there, and so are powers on both sides of its range.
    magnitude = f.unary("fabs", x)
    a = f.cast(magnitude, F64)
    m, e = mantissa(f, a, normal=True)
    s = f.div(m, f.add(m, 2.0))
    log2 = f.fma(s, poly(f, f.mul(s, s), _LOG2_SHORT), e)
    log2 = f.select(f.cmp("lt", a, math.inf), log2, a)
    log2 = f.select(f.cmp("eq", a, 0.0), f.const(-math.inf, a.type), log2)
    power = clamp(f, f.mul(f.cast(y, F64), log2), -200.0, 200.0)
    n, i = magic_round(f, power, 1.0)
    r = f.cast(f.mul(poly(f, f.sub(power, n), _EXP2_OF_POWER), pow2(f, i, F64)), F32)
    return _as_c99(f, x, y, magnitude, r)


@register("pow", F64, arity=2)
def _pow64(f: Fn, x: V, y: V) -> V:
    # 2^(y log2 |x|), the exponent as a sum of two numbers, whose second one is less than half a unit of the first.
    a, zero = f.unary("fabs", x), f.const(0.0, x.type)
    high, low = _log2(f, a)
    power = f.mul(y, high)
    rest = f.fma(y, low, f.fma(y, high, f.neg(power)))
    ends = f.or_(f.cmp("eq", a, 0.0), f.not_(f.cmp("lt", a, math.inf)))
    endless = f.select(f.cmp("eq", a, 0.0), f.const(-math.inf, x.type), a)
    power = f.select(ends, f.mul(y, endless), power)
    rest = f.select(f.or_(ends, f.not_(f.cmp("lt", f.unary("fabs", power), 1100.0))), zero, rest)
    power = clamp(f, power, -1100.0, 1100.0)
    n, i = magic_round(f, power, 1.0)
    r = f.mul(f.add(f.sub(power, n), rest), math.log(2))
    return _as_c99(f, x, y, a, ldexp(f, poly(f, r, EXP64), i))


def _log2(f: Fn, a: V) -> tuple[V, V]:
    """log2 of finite numbers above 0, as a sum: relative error 2^-65."""
    z, e = mantissa(f, a)
    # s = z / (2 + z), log(1 + z) = s (2 + s^2 (2/3 + 2/5 s^2 + ..)): products and sums of two parts, as far as they matter.
    t = f.add(z, 2.0)
    t_low = f.sub(z, f.sub(t, 2.0))
    s = f.div(z, t)
    s_low = f.div(f.fma(f.neg(s), t_low, f.fma(f.neg(s), t, z)), t)
    w = f.mul(s, s)
    w_low = f.fma(f.add(s, s), s_low, f.fma(s, s, f.neg(w)))
    terms = f.mul(w, poly(f, w, _ODD_TERMS))
    c, c_low = _sum(f, f.const(_TWO_THIRDS[0], a.type), terms, f.const(_TWO_THIRDS[1], a.type))
    c, c_low = _product(f, w, w_low, c, c_low)
    c, c_low = _sum(f, f.const(2.0, a.type), c, c_low)
    c, c_low = _product(f, s, s_low, c, c_low)
    c, c_low = _product(f, c, c_low, f.const(LOG2E[0], a.type), f.const(LOG2E[1], a.type))
    return _sum(f, e, c, c_low)


def _product(f: Fn, a: V, a_low: V, b: V, b_low: V) -> tuple[V, V]:
    """(a + a_low) (b + b_low) as a sum."""
    p = f.mul(a, b)
    return p, f.fma(a, b_low, f.fma(a_low, b, f.fma(a, b, f.neg(p))))


def _sum(f: Fn, a: V, b: V, b_low: V) -> tuple[V, V]:
    """a + (b + b_low) as a sum, the second part less than half a unit of the first, where a is 0 or no less than b."""
    whole = f.add(a, b)
    rest = f.add(f.add(f.sub(a, whole), b), b_low)
    total = f.add(whole, rest)
    return total, f.add(f.sub(whole, total), rest)


def _as_c99(f: Fn, x: V, y: V, magnitude: V, r: V) -> V:
    """The power of x whose magnitude's is r, with its sign, and what it is of special numbers."""
    one, integer = f.const(1.0, x.type), I32 if x.elem == F32 else I64
    r = f.select(f.cmp("eq", magnitude, 1.0), f.select(f.cmp("uno", y, y), y, one), r)  # 1 to an infinite power too
    half = f.mul(y, 0.5)
    is_int = f.cmp("eq", y, f.unary("trunc", y))
    odd = f.and_(is_int, f.cmp("ne", half, f.unary("trunc", half)))
    negative = f.cmp("lt", f.bitcast(x, integer), 0)
    r = f.select(f.and_(negative, odd), f.neg(r), r)
    no_root = f.and_(f.and_(f.cmp("lt", x, 0.0), f.cmp("lt", magnitude, math.inf)), f.not_(is_int))
    r = f.select(no_root, f.const(math.nan, x.type), r)
    return f.select(f.or_(f.cmp("eq", y, 0.0), f.cmp("eq", x, 1.0)), one, r)
