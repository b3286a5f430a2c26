"""Functions of f64: by polynomials where many lanes want them, others by libm, lane by lane."""

from __future__ import annotations

import math
from collections.abc import Callable

from dhlo.codegen.elementwise.vmath_base import (
    any_lane,
    at_least,
    at_most,
    call,
    clamp,
    keep_zero,
    lane_by_lane,
    ldexp,
    magic_round,
    poly,
    pow2,
    register,
    round_to_power,
    square,
    with_sign,
)
from dhlo.codegen.kernel_ir.builder import F64, I64, Fn, V

__all__ = ["EXP64", "LOG2E", "erf_near", "mantissa"]

LOG2E = (1.4426950408889634, 2.0355273740931033e-17)
"""1 / log(2) in two parts."""


def _libm(symbol: str, arity: int) -> Callable[..., V]:
    def emit(f: Fn, *args: V) -> V:
        f.module.declare(symbol, [F64] * arity, F64)
        return lane_by_lane(f, symbol, args)

    return emit


# ---------------------------------------------------------------------- exponentials and logarithms
# exp(r) by Taylor to r^13 for |r| <= log(2)/2: 4e-18; log 2 in two parts (fdlibm)
EXP64 = [1 / math.factorial(k) for k in range(13, -1, -1)]


_LOG_R = (
    1.479819860511658591e-01,
    1.531383769920937332e-01,
    1.818357216161805012e-01,
    2.222219843214978396e-01,
    2.857142874366239149e-01,
    3.999999999940941908e-01,
    6.666666666666735130e-01,
)


def _exp_remainder(f: Fn, x: V, n: V) -> V:
    """x - n log 2."""
    r = f.fma(n, f.const(-6.93147180369123816490e-01, x.type), x)
    return f.fma(n, f.const(-1.90821492927058770002e-10, x.type), r)


@register("exp", F64)
def _exp64(f: Fn, x: V) -> V:
    gone, zero = f.cmp("lt", x, -1075 * math.log(2)), f.const(0.0, x.type)  # where nothing is to underflow
    x = at_most(f, f.select(gone, zero, x), 710.0)
    n, i = magic_round(f, x, math.log2(math.e))
    return f.select(gone, zero, ldexp(f, poly(f, _exp_remainder(f, x, n), EXP64), i))


@register("exp_below", F64)
def _exp_below64(f: Fn, x: V) -> V:
    """exp(x) for x <= 0 or NaN; exactly 0 below 3.2e-308, so that neither result nor steps are subnormal numbers."""
    x = at_least(f, x, -1022 * math.log(2))
    n, s = round_to_power(f, x, math.log2(math.e), 1)
    return f.mul(poly(f, _exp_remainder(f, x, n), [2 * c for c in EXP64]), s)


def _log_parts(f: Fn, x: V) -> tuple[V, V]:
    """log(m), of x = 2^e m with m between the roots of 1/2 and of 2, and e."""
    # fdlibm's e_log.c: s = z / (2 + z), log(1 + z) = z - (z^2/2 - s (z^2/2 + R(s^2)))
    z, e = mantissa(f, x)
    low, h = _log_of_mantissa(f, z)
    return f.sub(z, f.sub(h, low)), e


def mantissa(f: Fn, x: V, *, normal: bool = False) -> tuple[V, V]:
    """m - 1 and e of x = 2^e m with m between the roots of 1/2 and of 2, where x may be subnormal unless it's `normal`."""
    tiny = f.cmp("lt", x, 2.0**-1022)
    bits = f.bitcast(x if normal else f.select(tiny, f.mul(x, 2.0**54), x), I64)
    t = f.sub(bits, 0x3FE6A09E667F3BCD)
    e = f.cast(f.shr(t, 52), F64)
    e = e if normal else f.select(tiny, f.sub(e, 54.0), e)
    return f.sub(f.bitcast(f.add(f.and_(t, 0xFFFFFFFFFFFFF), 0x3FE6A09E667F3BCD), F64), 1.0), e


def _log_of_mantissa(f: Fn, z: V) -> tuple[V, V]:
    """l and h = z^2 / 2 with log(1 + z) = z - (h - l)."""
    s = f.div(z, f.add(z, 2.0))
    w = f.mul(s, s)
    r = f.mul(w, poly(f, w, _LOG_R))
    h = f.mul(f.mul(z, z), 0.5)
    return f.mul(s, f.add(h, r)), h


def _log_of_others(f: Fn, x: V, y: V) -> V:
    """y, but what logarithms are of NaN, infinity, zeros and what is below."""
    nan, inf = f.const(math.nan, x.type), f.const(math.inf, x.type)
    y = f.select(f.cmp("lt", x, math.inf), y, x)
    return f.select(f.cmp("gt", x, 0.0), y, f.select(f.cmp("eq", x, 0.0), f.neg(inf), f.select(f.cmp("lt", x, 0.0), nan, x)))


@register("log", F64)
def _log(f: Fn, x: V) -> V:
    z, e = mantissa(f, x)
    low, h = _log_of_mantissa(f, z)
    low = f.fma(e, f.const(1.90821492927058770002e-10, x.type), low)
    return _log_of_others(f, x, f.fma(e, f.const(6.93147180369123816490e-01, x.type), f.sub(z, f.sub(h, low))))


@register("exp2", F64)
def _exp2(f: Fn, x: V) -> V:
    gone, zero = f.cmp("lt", x, -1075.0), f.const(0.0, x.type)
    x = at_most(f, f.select(gone, zero, x), 1025.0)
    n, i = magic_round(f, x, 1.0)
    return f.select(gone, zero, ldexp(f, poly(f, f.mul(f.sub(x, n), math.log(2)), EXP64), i))


@register("expm1", F64)
def _expm1(f: Fn, x: V) -> V:
    # With r = x - n log 2, 2^n expm1(r) + 2^n - 1: exact but for the sum. Halves of the powers, the greatest of which is 2^1024.
    c = clamp(f, x, -40.0, 710.0)
    n, i = magic_round(f, c, math.log2(math.e))
    r = _exp_remainder(f, c, n)
    p = f.fma(r, f.mul(r, poly(f, r, EXP64[:-2])), r)
    half = pow2(f, f.sub(i, 1), F64)
    y = f.fma(half, p, f.sub(half, 0.5))
    return keep_zero(f, x, f.select(f.cmp("eq", n, 0.0), p, f.add(y, y)))


@register("log1p", F64)
def _log1p(f: Fn, x: V) -> V:
    # log(u), of the rounded u = 1 + x, and what rounding lost over u.
    u = f.add(x, 1.0)
    lost = f.div(f.sub(x, f.sub(u, 1.0)), u)
    near = f.and_(f.cmp("gt", u, 0.0), f.cmp("lt", u, math.inf))
    return keep_zero(f, x, f.add(call(f, "log", u), f.select(near, lost, f.const(0.0, x.type))))


@register("log2", F64)
def _log2(f: Fn, x: V) -> V:
    # Of a mantissa by its logarithm, so that powers of two are exact.
    y, e = _log_parts(f, x)
    y = f.fma(y, f.const(LOG2E[0], x.type), f.fma(y, f.const(LOG2E[1], x.type), e))
    return _log_of_others(f, x, y)


@register("log10", F64)
def _log10(f: Fn, x: V) -> V:
    # log10(2) in two parts, the first of which times an exponent is exact.
    y, e = _log_parts(f, x)
    low = f.fma(y, f.const(1 / math.log(10), x.type), f.mul(e, 5.801722962879576e-10))
    return _log_of_others(f, x, f.fma(e, f.const(0.3010299950838089, x.type), low))


@register("sigmoid", F64)
def _sigmoid64(f: Fn, x: V) -> V:
    negative = f.cmp("lt", x, 0.0)
    e = call(f, "exp", f.select(negative, x, at_least(f, f.neg(x), -60.0)))  # exp of less doesn't show beside 1
    return f.div(f.select(negative, e, f.const(1.0, x.type)), f.add(e, 1.0))


@register("sigmoid_short", F64)
def _sigmoid_short64(f: Fn, x: V) -> V:
    return call(f, "sigmoid", x)


# ---------------------------------------------------------------------- hyperbolic functions
@register("tanh", F64)
def _tanh(f: Fn, x: V) -> V:
    t = call(f, "expm1", f.mul(at_most(f, f.unary("fabs", x), 22.0), 2.0))
    return with_sign(f, f.unary("fabs", f.div(t, f.add(t, 2.0))), x)


@register("sinh", F64)
def _sinh(f: Fn, x: V) -> V:
    a = f.unary("fabs", x)
    t, h = call(f, "expm1", at_most(f, a, 700.0)), call(f, "exp", f.mul(at_most(f, a, 1430.0), 0.5))
    near = f.mul(f.add(t, f.div(t, f.add(t, 1.0))), 0.5)
    return with_sign(f, f.select(f.cmp("gt", a, 700.0), f.mul(f.mul(h, 0.5), h), near), x)


@register("cosh", F64)
def _cosh(f: Fn, x: V) -> V:
    h = call(f, "exp", f.mul(at_most(f, f.unary("fabs", x), 1430.0), 0.5))
    whole = f.mul(h, h)
    return f.add(f.mul(f.mul(h, 0.5), h), f.div(0.5, at_most(f, whole, 1e40)))


@register("atanh", F64)
def _atanh(f: Fn, x: V) -> V:
    a = f.unary("fabs", x)
    y = f.mul(call(f, "log1p", f.div(f.add(a, a), f.sub(1.0, a))), 0.5)
    return with_sign(f, y, x)


# ---------------------------------------------------------------------- trigonometric functions
# pi / 2 in three parts; sin(r) / r in r^2 and cos(r) for |r| <= pi / 4; numbers from here on are libm's.
_PIO2 = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_SIN = (
    -7.586094789672621e-13,
    1.6058521349954986e-10,
    -2.5052106167335705e-08,
    2.7557319219150783e-06,
    -0.00019841269841264821,
    0.008333333333333331,
    -0.16666666666666666,
)
_COS = (
    4.745537017319258e-14,
    -1.1470455178216906e-11,
    2.0876755754879594e-09,
    -2.755731922129809e-07,
    2.480158730158451e-05,
    -0.0013888888888888887,
    0.041666666666666664,
)
_BIG = 2.0**20


def _reduced(f: Fn, x: V) -> tuple[V, V, V]:
    """Sine and cosine of x less a multiple q of pi / 2, and q."""
    n, q = magic_round(f, x, 2 / math.pi)
    near = f.fma(f.neg(n), f.const(_PIO2[0], x.type), x)  # exact
    # Less n times the second part, both in two numbers: near a multiple they all but cancel.
    p = f.mul(n, _PIO2[1])
    left = f.fma(n, f.const(_PIO2[2], x.type), f.fma(n, f.const(_PIO2[1], x.type), f.neg(p)))
    r = f.sub(near, p)
    back = f.sub(r, near)
    low = f.sub(f.sub(f.sub(near, f.sub(r, back)), f.add(p, back)), left)
    z = square(f, r)
    sine = f.add(f.fma(r, f.mul(z, poly(f, z, _SIN)), r), low)
    half = f.mul(z, 0.5)
    one = f.sub(1.0, half)
    rest = f.fma(f.mul(z, z), poly(f, z, _COS), f.sub(f.sub(f.sub(1.0, one), half), f.mul(r, low)))
    return sine, f.add(one, rest), q


def _flipped(f: Fn, x: V, turns: V) -> V:
    """x with another sign where bit 1 of `turns` is set."""
    sign = f.shl(f.and_(turns, 2), 62)
    return f.bitcast(f.xor(f.bitcast(x, I64), sign), F64)


def _or_libm(f: Fn, name: str, x: V, y: V, rare: V) -> V:
    """libm's results where `rare`."""
    return f.if_else(any_lane(f, rare), lambda: [f.select(rare, _libm(name, 1)(f, x), y)], lambda: [y], [x.type])[0]


def _trigonometric(name: str, of: Callable[[Fn, V, V, V], V]) -> None:
    def emit(f: Fn, x: V) -> V:
        rare = f.not_(f.cmp("lt", f.unary("fabs", x), _BIG))
        sine, cosine, q = _reduced(f, f.select(rare, f.const(0.0, x.type), x))
        y = of(f, sine, cosine, q)
        return _or_libm(f, name, x, y if name == "cos" else keep_zero(f, x, y), rare)

    register(name, F64)(emit)


def _odd(f: Fn, q: V) -> V:
    return f.cmp("ne", f.and_(q, 1), 0)


_trigonometric("sin", lambda f, s, c, q: _flipped(f, f.select(_odd(f, q), c, s), q))
_trigonometric("cos", lambda f, s, c, q: _flipped(f, f.select(_odd(f, q), s, c), f.add(q, 1)))
_trigonometric("tan", lambda f, s, c, q: f.select(_odd(f, q), f.neg(f.div(c, s)), f.div(s, c)))

# ---------------------------------------------------------------------- their inverses
# Cephes' atan: (P / Q)(z) z + 1 times x for |x| <= 0.66; fdlibm's asin: (p / q)(z) for z <= 1/4.
_ATAN_P = (
    *(-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1),
    *(-1.228866684490136173410e2, -6.485021904942025371773e1),
)
_ATAN_Q = (
    *(1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2),
    *(4.853903996359136964868e2, 1.945506571482613964425e2),
)
_ASIN_P = (
    *(3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02),
    *(2.01212532134862925881e-01, -3.25565818622400915405e-01, 1.66666666666666657415e-01),
)
_ASIN_Q = (
    *(7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471e00),
    *(-2.40339491173441421878e00, 1.0),
)


def _atan_ratio(f: Fn, y: V, x: V) -> V:
    """atan(y / x) for y, x >= 0, not both 0 or infinite, with one rounding of what is divided."""
    far, middle = f.cmp("gt", y, f.mul(x, 2.41421356237309504880)), f.cmp("gt", y, f.mul(x, 0.66))
    over = f.select(far, f.neg(x), f.select(middle, f.sub(y, x), y))
    under = f.select(far, y, f.select(middle, f.add(y, x), x))
    t = f.div(over, under)
    z = square(f, t)
    s = f.fma(t, f.mul(z, f.div(poly(f, z, _ATAN_P), poly(f, z, _ATAN_Q))), t)

    def by(a: float, b: float) -> V:
        return f.select(far, f.const(a, x.type), f.select(middle, f.const(b, x.type), f.const(0.0, x.type)))

    return f.add(by(math.pi / 2, math.pi / 4), f.add(s, by(_PIO2[1], _PIO2[1] / 2)))


@register("atan", F64)
def _atan(f: Fn, x: V) -> V:
    a, one = f.unary("fabs", x), f.const(1.0, x.type)
    return with_sign(f, f.unary("fabs", _atan_ratio(f, at_most(f, a, 1e300), one)), x)


@register("atan2", F64, arity=2)
def _atan2(f: Fn, y: V, x: V) -> V:
    # Both halved where one is large, so that sums stay finite; of two infinities both are 1, of two zeros the ratio is 0.
    a, b, zero, one = f.unary("fabs", y), f.unary("fabs", x), f.const(0.0, x.type), f.const(1.0, x.type)
    large = f.or_(f.cmp("gt", a, 1e300), f.cmp("gt", b, 1e300))
    endless = [f.cmp("eq", v, math.inf) for v in (a, b)]
    any_endless = f.or_(*endless)
    a, b = (f.select(large, f.mul(v, 0.125), v) for v in (a, b))
    a, b = (f.select(any_endless, f.select(end, one, f.mul(v, 0.0)), v) for v, end in zip((a, b), endless, strict=True))
    b = f.select(f.and_(f.cmp("eq", a, 0.0), f.cmp("eq", b, 0.0)), one, b)
    t = _atan_ratio(f, a, b)
    negative = f.cmp("lt", f.bitcast(x, I64), 0)
    t = f.select(negative, f.add(f.sub(math.pi, t), 2 * _PIO2[1]), t)
    unknown = f.cmp("uno", x, y)
    return f.select(unknown, f.add(x, y), with_sign(f, f.unary("fabs", f.select(unknown, zero, t)), y))


def _asin_reduced(f: Fn, x: V) -> tuple[V, V]:
    """Whether |x| is at least 1/2, and asin of |x|, or else of the root of (1 - |x|) / 2."""
    a = f.unary("fabs", x)
    large = f.cmp("ge", a, 0.5)
    z = f.select(large, f.mul(f.sub(1.0, a), 0.5), square(f, a))
    s = f.select(large, f.unary("sqrt", z), a)
    return large, f.fma(s, f.mul(z, f.div(poly(f, z, _ASIN_P), poly(f, z, _ASIN_Q))), s)


@register("asin", F64)
def _asin(f: Fn, x: V) -> V:
    large, y = _asin_reduced(f, x)
    far = f.sub(math.pi / 2, f.sub(f.add(y, y), _PIO2[1]))
    return with_sign(f, f.unary("fabs", f.select(large, far, y)), x)


@register("acos", F64)
def _acos(f: Fn, x: V) -> V:
    large, y = _asin_reduced(f, x)
    negative, twice = f.cmp("lt", x, 0.0), f.add(y, y)
    far = f.select(negative, f.sub(math.pi, f.sub(twice, 2 * _PIO2[1])), twice)
    near = f.sub(math.pi / 2, f.sub(f.select(negative, f.neg(y), y), _PIO2[1]))
    return f.select(large, far, near)


# ---------------------------------------------------------------------- error function
# erf(x) / x in x^2 for |x| <= 1; (1 + 2a) exp(a^2) erfc(a) in (a - 3.75) / (a + 3.75) for 0 <= a <= 27.3 (form: Shepherd and
# Laframboise 1981).
_ERF = (
    5.957176147748911e-11,
    -1.1372848856791674e-09,
    1.4659775274047436e-08,
    -1.6350312701054695e-07,
    1.6461000484121368e-06,
    -1.4925595266831182e-05,
    0.0001205533111164271,
    -0.000854832698083379,
    0.0052239776248180145,
    -0.026866170645076792,
    0.11283791670954879,
    -0.3761263890318375,
    1.1283791670955126,
)
_ERFC = (
    -2.360522062505669e-09,
    -7.28355201689257e-10,
    3.2853865855032794e-08,
    1.5617908096635943e-08,
    -2.52849205577804e-07,
    -4.77698299208642e-08,
    1.7484869076103767e-06,
    -9.803704925289925e-07,
    -1.1443262512802912e-05,
    2.2387313512838182e-05,
    5.1649028841359415e-05,
    -0.0002901549694589009,
    0.00029371363655085193,
    0.0017556260158339083,
    -0.009746579548789899,
    0.028362277400827144,
    -0.058693398590725296,
    0.0923043211614956,
    -0.10880393014169336,
    0.08227673849011337,
    0.0035854154854634396,
    -0.1402405985855467,
    1.2375126308378275,
)

# erfc of more is 0.
_GONE = 27.226017111108366


def _erfc_ratio(f: Fn, a: V, shift: V) -> V:
    """exp(shift) erfc(a) for 0 <= a <= 28. exp(-a^2) is that of the square of a's first half, which is exact, times the rest's."""
    first = f.bitcast(f.and_(f.bitcast(a, I64), -(1 << 27)), F64)
    rest = f.mul(f.sub(first, a), f.add(first, a))
    e = call(f, "exp_below", f.fma(f.neg(first), first, shift))
    e = f.fma(e, f.fma(f.mul(rest, rest), f.fma(rest, f.const(1 / 6, a.type), f.const(0.5, a.type)), rest), e)
    t = f.div(f.sub(a, 3.75), f.add(a, 3.75))
    return f.div(f.mul(e, poly(f, t, _ERFC)), f.fma(a, f.const(2.0, a.type), f.const(1.0, a.type)))


def erf_near(f: Fn, x: V) -> V:
    """erf(x) for |x| <= 1; squares of the least numbers would be subnormal."""
    return f.mul(x, poly(f, square(f, x), _ERF))


@register("erfc", F64)
def _erfc(f: Fn, x: V) -> V:
    # What may be subnormal is multiplied last; less than erfc(20) doesn't show beside 2, and less than that of _GONE not at all.
    zero, negative = f.const(0.0, x.type), f.cmp("lt", x, 0.0)
    a = f.unary("fabs", x)
    gone = f.or_(negative, f.cmp("gt", a, _GONE))
    a = f.select(gone, at_most(f, a, 20.0), a)
    far = f.cmp("gt", a, 20.0)
    y = _erfc_ratio(f, at_least(f, a, 2.0**-200), f.select(far, f.const(60.0, x.type), zero))
    y = f.mul(y, f.select(far, f.const(math.exp(-60), x.type), f.const(1.0, x.type)))
    y = f.select(negative, f.sub(2.0, y), f.select(gone, zero, y))
    return f.select(f.cmp("lt", a, 0.5), f.sub(1.0, erf_near(f, clamp(f, x, -0.5, 0.5))), y)


@register("erf", F64)
def _erf(f: Fn, x: V) -> V:
    a = f.unary("fabs", x)
    far = f.sub(1.0, _erfc_ratio(f, clamp(f, a, 1.0, 6.5), f.const(0.0, x.type)))
    return with_sign(f, f.unary("fabs", f.select(f.cmp("lt", a, 1.0), erf_near(f, at_most(f, a, 1.0)), far)), x)


@register("normal_cdf", F64)
def _normal_cdf64(f: Fn, x: V) -> V:
    return f.mul(call(f, "erfc", f.mul(x, -math.sqrt(0.5))), 0.5)


# ---------------------------------------------------------------------- remainders, and libm's functions
@register("fmod", F64, arity=2)
def _fmod(f: Fn, x: V, y: V) -> V:
    # x - trunc(x / y) y is exact while the quotient is below 2^52; rounded it may be one too large, and r then has another sign.
    q = f.unary("trunc", f.div(x, y))
    r = f.fma(f.neg(q), y, x)
    step = f.bitcast(f.xor(f.bitcast(y, I64), f.and_(f.xor(f.bitcast(x, I64), f.bitcast(y, I64)), -(1 << 63))), F64)
    over = f.and_(f.cmp("ne", r, 0.0), f.xor(f.cmp("lt", r, 0.0), f.cmp("lt", x, 0.0)))
    fast = with_sign(f, f.unary("fabs", f.select(over, f.add(r, step), r)), x)
    fast = f.select(f.cmp("lt", f.unary("fabs", x), f.unary("fabs", y)), x, fast)
    rare = f.not_(f.cmp("lt", f.unary("fabs", q), 2.0**52))
    return f.if_else(any_lane(f, rare), lambda: [f.select(rare, f.rem(x, y), fast)], lambda: [fast], [x.type])[0]


for _name in ("asinh", "acosh", "lgamma", "cbrt"):
    register(_name, F64)(_libm(_name, 1))
