"""f32 exp, log, tanh, erf, sin and their kin: Cody-Waite range reduction and minimax polynomials evaluated with fma.

Polynomials without a source are minimax fits (Remez) of the function named beside them, with the relative error stated
there.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

from dhlo.codegen.elementwise.vmath_base import (
    any_lane,
    at_least,
    at_most,
    call,
    clamp,
    keep_zero,
    ldexp,
    magic_round,
    poly,
    pow2,
    register,
    round_to_power,
    square,
    table,
    with_sign,
)
from dhlo.codegen.kernel_ir.builder import F32, F64, I32, Fn, V

__all__ = ["exp2_below", "exp_half"]

_LN2_HI, _LN2_LO = 0.693145751953125, 1.42860682030941723212e-6  # Cody-Waite, 15 bits in the first (Cephes)
_LOG2E = math.log2(math.e)
# exp(r) = 1 + r + r^2 Q(r) for |r| <= log(2)/2; minimax, 3e-9
_EXP_Q = (0.001395057625, 0.008368953437, 0.04166620448, 0.1666651831, 0.5000000096)
# the same as a relative error of exp(r) - 1, 2e-10; 2^r = 1 + r Q(r) for |r| <= 1/2, 2e-9
_EXPM1_Q = (0.0001991430166, 0.00139411027, 0.00833327284, 0.04166635353, 0.1666666682, 0.5000000047)
_EXP2_Q = (0.0001547658991, 0.00134005378, 0.009618002913, 0.05550327122, 0.2402265135, 0.6931472066)


# 2^r for |r| <= 1/2, minimax, 9.4e-8 relative
_EXP2_SHORT = (0.001340754626, 0.00967209148, 0.05550307577, 0.2402223127, 0.6931472153, 1.0)


def _times_power(coefs: Sequence[float], power: int) -> list[float]:
    """The coefficients of 2^power times a polynomial, whose value is the same but for the exponent."""
    return [math.ldexp(c, power) for c in coefs]


def _exp_remainder(f: Fn, x: V, n: V) -> V:
    """x - n log 2."""
    r = f.fma(n, f.const(-_LN2_HI, x.type), x)
    return f.fma(n, f.const(-_LN2_LO, x.type), r)


def _exp_normal(f: Fn, x: V, down: int = 0, power: int = 0) -> V:
    """2^power exp(x), as exact as exp, where n = x / log 2, rounded, has -126 <= n - down <= 128; infinite at the latter."""
    n, s = round_to_power(f, x, _LOG2E, down)
    return f.mul(poly(f, _exp_remainder(f, x, n), _times_power((*_EXP_Q, 1.0, 1.0), down + power)), s)


def _or_subnormal(f: Fn, x: V, y: V, low: float, high: float, exact: Callable[[V], tuple[V, V]]) -> V:
    """`y`, but p 2^n of (p, n) = `exact(x)` where low < x < high < 0 and the result may be subnormal. That is rare, and
    computed only where a lane wants it.
    """
    # Negative floats further from 0 are greater as integers, so that one comparison without a sign tells.
    first, end = (struct.unpack("<i", struct.pack("<f", bound))[0] + (bound == high) for bound in (high, low))
    rare = f.cmp("ult", f.sub(f.bitcast(x, I32), first), end - first)

    def slow() -> list[V]:
        alone = f.select(rare, x, f.const(high, x.type))  # other lanes make no subnormal numbers here
        return [f.select(rare, ldexp(f, *exact(alone)), y)]

    return f.if_else(any_lane(f, rare), slow, lambda: [y], [y.type])[0]


@register("exp", ulp=1.0)
def _exp(f: Fn, x: V) -> V:
    def exact(x: V) -> tuple[V, V]:
        n, i = magic_round(f, x, _LOG2E)
        return poly(f, _exp_remainder(f, x, n), (*_EXP_Q, 1.0, 1.0)), i

    y = _exp_normal(f, clamp(f, x, -126 * math.log(2), 89.0), down=1)
    return _or_subnormal(f, x, y, -150 * math.log(2), -125.4 * math.log(2), exact)


@register("exp2", ulp=1.0)
def _exp2(f: Fn, x: V) -> V:
    coefs = (*_EXP2_Q, 1.0)

    def exact(x: V) -> tuple[V, V]:
        n, i = magic_round(f, x, 1.0)
        return poly(f, f.sub(x, n), coefs), i

    c = clamp(f, x, -126.0, 128.4)
    n, s = round_to_power(f, c, 1.0, 1)
    y = f.mul(poly(f, f.sub(c, n), _times_power(coefs, 1)), s)
    return _or_subnormal(f, x, y, -150.0, -125.4, exact)


def _below(f: Fn, x: V, per: float, least: int) -> V:
    """2^(x per) for x <= 0 or NaN, exactly 0 below 2^(least + 1/2): a polynomial of about 2^(least + 127) times a power of two
    that is 0 for the least x, so that nothing on the way is subnormal.
    """
    x = at_least(f, x, least / per)
    n, s = round_to_power(f, x, per, least + 127)
    r = f.sub(x, n) if per == 1.0 else f.fma(x, f.const(per, x.type), f.neg(n))
    return f.mul(poly(f, r, _times_power(_EXP2_SHORT, least + 127)), s)


def exp2_below(f: Fn, x: V, least: int = -126) -> V:
    """2^x for x <= 0: relative error 1e-7, but exactly 0 below 2^(least + 1/2), an absolute error of as much, and for -inf; NaN for
    NaN and +inf. Neither result nor steps are subnormal numbers, if x isn't. `least` is -126 to 0.
    """
    return _below(f, x, 1.0, least)


@register("exp_below")
def _exp_below(f: Fn, x: V) -> V:
    """exp(x) for x <= 0 or NaN: relative error 1.8e-7 + 1.4e-8 |x|, for weights that are the smaller the less exact they are;
    exactly 0 below 1.7e-38 = 2^-125.5, an absolute error of as much. Neither result nor steps are subnormal numbers, if x isn't.
    """
    return _below(f, x, _LOG2E, -126)


def exp_half(f: Fn, x: V) -> V:
    """exp(x) / 2 for x >= -80, without overflow up to where the half overflows."""
    return _exp_normal(f, at_most(f, x, 89.7), down=2, power=-1)


@register("expm1", ulp=1.5)
def _expm1(f: Fn, x: V) -> V:
    # 2^n (expm1(r) + 1) - 1 with 2^(n-1) throughout, so that n = 128 does not overflow early
    c = clamp(f, x, -20.0, 89.0)
    n, s = round_to_power(f, c, _LOG2E, 1)
    r = _exp_remainder(f, c, n)
    tail = f.fma(r, poly(f, r, _EXPM1_Q), f.const(2.0**-60, x.type))  # as `square` does
    p = f.fma(r, tail, r)
    y = f.fma(s, p, f.sub(s, 0.5))
    return keep_zero(f, x, f.add(y, y))


@register("sigmoid", ulp=2.5)
def _sigmoid(f: Fn, x: V) -> V:
    # exp(-x) of less than half an ULP of 1 doesn't show; it overflows where the result isn't a normal number any more: 0, as in
    # PyTorch
    e = _exp_normal(f, clamp(f, f.neg(x), -20.0, 88.0), down=-1)
    return f.div(f.const(1.0, x.type), f.add(e, 1.0))


# 2^r = 1 + r Q(r) for |r| <= 1/2, minimax, 2.9e-6 relative
_EXP2_OF_NARROW = (0.00958285, 0.05590643, 0.24024099, 0.6931242, 1.0)


@register("sigmoid_short")
def _sigmoid_short(f: Fn, x: V) -> V:
    # as sigmoid, with four steps of a polynomial for six, and one of range reduction for two: few registers, too
    x = clamp(f, x, -88.0, 20.0)
    n, s = round_to_power(f, x, -_LOG2E, -1)
    r = f.fma(x, f.const(-_LOG2E, x.type), f.neg(n))
    return f.div(f.const(1.0, x.type), f.fma(poly(f, r, _times_power(_EXP2_OF_NARROW, -1)), s, f.const(1.0, x.type)))


# tanh(x) = x + x z P(z), z = x^2, |x| < 0.625; minimax, 4e-9
_TANH_P = (-0.005717027938, 0.02065057155, -0.05374349305, 0.1333149122, -0.3333328392)


@register("tanh", ulp=2.0)
def _tanh(f: Fn, x: V) -> V:
    # odd polynomial near zero, else 1 - 2 / (exp(2|x|) + 1), which rounds to 1 from 9.011 on (Cephes)
    a = f.unary("fabs", x)
    z = square(f, x)
    near = f.fma(a, f.mul(z, poly(f, z, _TANH_P)), a)
    a = at_most(f, a, 9.2)
    far = f.sub(f.const(1.0, x.type), f.div(f.const(2.0, x.type), f.add(_exp_normal(f, f.add(a, a)), 1.0)))
    return with_sign(f, f.select(f.cmp("lt", a, 0.625), near, far), x)


# ---------------------------------------------------------------------- erf
@register("erf", ulp=1.5)
def _erf(f: Fn, x: V) -> V:
    # N. Juffa's single-precision erf: odd polynomial near zero, 1 - exp(polynomial) elsewhere
    t, s = f.unary("fabs", x), square(f, x)
    near = f.fma(poly(f, s, (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)), x, x)
    t4 = at_most(f, t, 4.0)
    r = poly(f, t4, (-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1))
    far = f.sub(f.const(1.0, x.type), _exp_normal(f, f.fma(r, t4, f.neg(t4))))
    return f.select(f.cmp("gt", t, 0.927734375), with_sign(f, far, x), keep_zero(f, x, near))


# log2(erfc(t / sqrt(2))) / t for t >= 0; weighted minimax up to 9, and falling without end beyond
_LOG2_TAIL = (
    -3.092406331e-08,
    9.000078763e-07,
    -1.126125335e-05,
    7.726767944e-05,
    -2.793707245e-04,
    -6.568662229e-06,
    6.961188279e-03,
    -5.245420337e-02,
    -4.592159092e-01,
    -1.151104808,
)


@register("normal_cdf")
def _normal_cdf(f: Fn, x: V) -> V:
    # one exponential of a polynomial: within 1.2e-7 everywhere, relative error 1.5e-6 down to x = -3, 1.5e-4 to x = -6
    t = f.unary("fabs", x)
    tail = exp2_below(f, f.fma(poly(f, t, _LOG2_TAIL), t, f.const(-1.0, x.type)))
    return f.select(f.cmp("lt", x, 0.0), tail, f.sub(f.const(1.0, x.type), tail))


# ---------------------------------------------------------------------- log
# log(1 + z) = z - z^2/2 + z^3 P(z) for z in [sqrt(1/2) - 1, sqrt(2) - 1]; minimax, 7e-10
_LOG_P = (
    0.06916764986,
    -0.1179170364,
    0.1187335369,
    -0.1238407099,
    0.1421857841,
    -0.1666926333,
    0.2000223049,
    -0.2499998642,
    0.3333331039,
)
_SQRT_HALF = 0x3F3504F3


def _log_split(f: Fn, x: V) -> tuple[V, V]:
    """x = 2^e (1 + z) with 1 + z in [sqrt(1/2), sqrt(2)) for finite x > 0; returns (z, e as float)."""
    tiny = f.cmp("lt", x, 2.0**-126)
    bits = f.bitcast(f.select(tiny, f.mul(x, 2.0**24), x), I32)
    t = f.sub(bits, _SQRT_HALF)
    e = f.cast(f.shr(t, 23), F32)
    e = f.select(tiny, f.sub(e, 24.0), e)
    m = f.bitcast(f.add(f.and_(t, 0x7FFFFF), _SQRT_HALF), F32)
    return f.sub(m, 1.0), e


def _log_tail(f: Fn, z: V) -> V:
    """log(1 + z) - z, accurate beside z."""
    z2 = f.mul(z, z)
    return f.fma(z2, f.const(-0.5, z.type), f.mul(f.mul(z2, z), poly(f, z, _LOG_P)))


def _log_special(f: Fn, x: V, y: V) -> V:
    """y = log(x) repaired for x = 0, x < 0, +inf and NaN."""
    nan, inf = f.const(math.nan, x.type), f.const(math.inf, x.type)
    y = f.select(f.cmp("lt", x, math.inf), y, x)  # +inf and NaN
    return f.select(f.cmp("gt", x, 0.0), y, f.select(f.cmp("eq", x, 0.0), f.neg(inf), f.select(f.cmp("lt", x, 0.0), nan, x)))


@register("log", ulp=1.0)
def _log(f: Fn, x: V) -> V:
    z, e = _log_split(f, x)
    y = f.fma(e, f.const(_LN2_LO, x.type), _log_tail(f, z))
    return _log_special(f, x, f.fma(e, f.const(_LN2_HI, x.type), f.add(z, y)))


def _log_base(f: Fn, x: V, per_e: float) -> V:
    """log_b(x), where `per_e` is log_b(e); e log_b(2) is added last."""
    hi = int(per_e * 4096) / 4096
    z, e = _log_split(f, x)
    t = _log_tail(f, z)
    two_hi = int(per_e * math.log(2) * 4096 + 0.5) / 4096
    small = f.fma(t, f.const(per_e - hi, x.type), f.mul(z, per_e - hi))
    small = f.fma(e, f.const(per_e * math.log(2) - two_hi, x.type), small)
    y = f.fma(t, f.const(hi, x.type), small)
    y = f.fma(z, f.const(hi, x.type), y)
    return _log_special(f, x, f.fma(e, f.const(two_hi, x.type), y))


@register("log2", ulp=2.0)
def _log2(f: Fn, x: V) -> V:
    return _log_base(f, x, _LOG2E)


@register("log10", ulp=2.0)
def _log10(f: Fn, x: V) -> V:
    return _log_base(f, x, math.log10(math.e))


@register("log1p", ulp=1.5)
def _log1p(f: Fn, x: V) -> V:
    # 1 + x = 2^e (1 + z) with z from x itself, so that nothing of a small x is lost (SLEEF's log1p)
    u = f.add(x, 1.0)
    e = f.shr(f.sub(f.bitcast(u, I32), _SQRT_HALF), 23)
    s = pow2(f, f.neg(f.select(f.cmp("lt", e, 126), e, f.const(126, e.type))), F32)
    z = f.fma(x, s, f.sub(s, 1.0))
    k = f.cast(e, F32)
    huge = f.cmp("gt", x, 2.0**125)
    half = f.fma(z, f.fma(z, poly(f, z, _LOG_P), f.const(-0.5, x.type)), f.const(2.0**-60, x.type))  # as `square` does
    y = f.fma(z, half, f.fma(k, f.const(_LN2_LO, x.type), z))
    y = f.fma(k, f.const(_LN2_HI, x.type), y)
    y = f.select(huge, call(f, "log", x), y)
    nan, ninf = f.const(math.nan, x.type), f.const(-math.inf, x.type)
    y = f.select(f.cmp("gt", x, -1.0), y, f.select(f.cmp("eq", x, -1.0), ninf, nan))
    return keep_zero(f, x, y)


# ---------------------------------------------------------------------- sin, cos, tan
_PIO2 = (1.57079637050628662109375, -4.371139000186238e-8, -1.7151245100059768e-15)  # three f32 parts
_SIN_P = (-0.0001950906316, 0.008332118509, -0.1666665402)
_COS_P = (2.442921296e-5, -0.001388728893, 0.04166664531)
_TAN_P = (9.38540185543e-3, 3.11992232697e-3, 2.44301354525e-2, 5.34112807005e-2, 1.33387994085e-1, 3.33331568548e-1)
_BIG = 2.0**17  # where the three-part reduction hands over


def _atan_inverse(n: int, bits: int) -> int:
    """atan(1/n) * 2^bits by its series."""
    term, total, k = (1 << bits) // n, 0, 1
    while term:
        total += term // k if k % 4 == 1 else -(term // k)
        term, k = term // (n * n), k + 2
    return total


@functools.cache
def _two_pi_table() -> tuple[list[float], list[float]]:
    """2^k mod 2 pi as double-double for k = -6 .. 104 (the last is for infinity and NaN): what the mantissa of |x| >=
    2^17 is multiplied by. pi by Machin's formula.
    """
    bits = 320
    period = 2 * (16 * _atan_inverse(5, bits) - 4 * _atan_inverse(239, bits))
    unit = Fraction(1, 1 << bits)
    hi, lo = [], []
    for k in range(-6, 105):
        r = (1 << (bits + k)) % period
        exact = (r if 2 * r <= period else r - period) * unit
        hi.append(float(exact))
        lo.append(float(exact - Fraction(hi[-1])))
    return [*hi, 0.0], [*lo, 0.0]


def _reduce_big(f: Fn, x: V) -> tuple[V, V]:
    """Payne-Hanek for |x| >= 2^17: mantissa times (2^exponent mod 2 pi) in double-double, reduced once more."""
    hi_t, lo_t = _two_pi_table()
    bits = f.bitcast(x, I32)
    e = f.and_(f.shr(bits, 23), 255)
    k = f.sub(e, 144)
    k = f.select(f.cmp("lt", k, 0), f.const(0, k.type), k)
    m = f.cast(f.or_(f.and_(bits, 0x7FFFFF), 0x800000), F64)
    hi, lo = table(f, "vm_trig_hi", hi_t, k), table(f, "vm_trig_lo", lo_t, k)
    p = f.mul(m, hi)
    tail = f.fma(m, hi, f.neg(p))
    n = f.unary("roundeven", f.mul(p, 2 / math.pi))
    r = f.fma(n, f.const(-math.pi / 2, n.type), p)
    tail = f.add(tail, f.fma(n, f.const(-6.123233995736766e-17, n.type), f.mul(m, lo)))
    r = f.cast(f.add(r, tail), F32)
    q = f.cast(n, I32)
    negative = f.cmp("lt", bits, 0)
    r, q = f.select(negative, f.neg(r), r), f.select(negative, f.neg(q), q)
    return f.select(f.cmp("eq", e, 255), f.const(math.nan, x.type), r), q


def _reduce_trig(f: Fn, x: V) -> tuple[V, V]:
    """x = q pi/2 + r, |r| <= pi/4 and a little; returns (r, q)."""
    n, q = magic_round(f, x, 2 / math.pi)
    r = x
    for part in _PIO2:
        r = f.fma(n, f.const(-part, x.type), r)
    big = f.cmp("ge", f.unary("fabs", x), _BIG)

    def slow() -> list[V]:
        rb, qb = _reduce_big(f, x)
        return [f.select(big, rb, r), f.select(big, qb, q)]

    out = f.if_else(any_lane(f, big), slow, lambda: [r, q], [r.type, q.type])
    return out[0], out[1]


def _sin_shifted(f: Fn, x: V, quarter: int) -> V:
    """sin(x + quarter * pi/2)."""
    r, q = _reduce_trig(f, x)
    q = f.add(q, quarter)
    z = square(f, r)
    s = f.fma(r, f.mul(z, poly(f, z, _SIN_P)), r)
    c = f.fma(f.mul(z, z), poly(f, z, _COS_P), f.fma(z, f.const(-0.5, x.type), f.const(1.0, x.type)))
    y = f.select(f.cmp("ne", f.and_(q, 1), 0), c, s)
    return f.bitcast(f.xor(f.bitcast(y, I32), f.shl(f.and_(q, 2), 30)), F32)


@register("sin", ulp=1.7)
def _sin(f: Fn, x: V) -> V:
    return keep_zero(f, x, _sin_shifted(f, x, 0))


@register("cos", ulp=1.7)
def _cos(f: Fn, x: V) -> V:
    return _sin_shifted(f, x, 1)


@register("tan", ulp=3.0)
def _tan(f: Fn, x: V) -> V:
    r, q = _reduce_trig(f, x)
    z = square(f, r)
    t = f.fma(r, f.mul(z, poly(f, z, _TAN_P)), r)
    y = f.select(f.cmp("ne", f.and_(q, 1), 0), f.div(f.const(-1.0, x.type), t), t)
    return keep_zero(f, x, y)
