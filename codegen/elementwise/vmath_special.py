"""Inverse trigonometric and hyperbolic functions, roots, remainders, and the gamma and error function families.

f32 functions whose reductions would lose accuracy (erfc, erfinv, lgamma, digamma, cbrt) are evaluated in f64 and
rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dhlo.codegen.elementwise.vmath_base import (
    any_lane,
    at_most,
    call,
    keep_zero,
    poly,
    register,
    square,
    with_sign,
)
from dhlo.codegen.elementwise.vmath_f32 import exp_half
from dhlo.codegen.elementwise.vmath_f64 import erf_near
from dhlo.codegen.kernel_ir.builder import F32, F64, Fn, V

__all__: list[str] = []


# ---------------------------------------------------------------------- inverse trigonometric
# atan(x) = x + x z P(z), z = x^2, |x| <= 1; minimax, 2e-9
_ATAN_P = (
    -0.00182719562,
    0.01106436823,
    -0.03145557842,
    0.05823444382,
    -0.08419454353,
    0.109575753,
    -0.1426524542,
    0.1999863865,
    -0.3333330187,
)
_ASIN_P = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)  # Cephes asinf
_PIO2_HI, _PIO2_LO = 1.57079637050628662109375, -4.371139000186238e-8


def _from_pio2(f: Fn, x: V) -> V:
    """pi/2 - x."""
    return f.sub(f.const(_PIO2_HI, x.type), f.sub(x, _PIO2_LO))


def _atan_unit(f: Fn, t: V) -> V:
    z = square(f, t)
    return f.fma(t, f.mul(z, poly(f, z, _ATAN_P)), t)


@register("atan", ulp=2.5)
def _atan(f: Fn, x: V) -> V:
    one = f.const(1.0, x.type)
    a = at_most(f, f.unary("fabs", x), 2.0**60)  # beyond it is pi/2, and 1/x might be subnormal
    big = f.cmp("gt", a, 1.0)
    r = _atan_unit(f, f.div(f.select(big, one, a), f.select(big, a, one)))
    return with_sign(f, f.select(big, _from_pio2(f, r), r), x)


@register("atan2", ulp=3.0, arity=2)
def _atan2(f: Fn, y: V, x: V) -> V:
    ay, ax = f.unary("fabs", y), f.unary("fabs", x)
    steep = f.cmp("gt", ay, ax)
    top, bottom = f.select(steep, ax, ay), f.select(steep, ay, ax)
    t = f.div(top, bottom)
    t = f.select(f.cmp("eq", bottom, 0.0), f.const(0.0, x.type), t)
    t = f.select(f.cmp("eq", top, math.inf), f.const(1.0, x.type), t)  # both infinite
    r = _atan_unit(f, t)
    r = f.select(steep, _from_pio2(f, r), r)
    left = f.cmp("lt", f.bitcast(x, "i32"), 0)
    r = f.select(left, f.sub(f.const(2 * _PIO2_HI, x.type), f.sub(r, 2 * _PIO2_LO)), r)
    return f.select(f.cmp("uno", x, y), f.const(math.nan, x.type), with_sign(f, r, y))


def _asin_parts(f: Fn, a: V) -> tuple[V, V]:
    """asin(s) where s = a if a <= 1/2, else sqrt((1 - a) / 2); and whether a > 1/2."""
    big = f.cmp("gt", a, 0.5)
    half = f.mul(f.sub(f.const(1.0, a.type), a), 0.5)
    z = f.select(big, half, square(f, a))
    s = f.select(big, f.unary("sqrt", half), a)
    return f.fma(s, f.mul(z, poly(f, z, _ASIN_P)), s), big


@register("asin", ulp=2.5)
def _asin(f: Fn, x: V) -> V:
    r, big = _asin_parts(f, f.unary("fabs", x))
    return with_sign(f, f.select(big, _from_pio2(f, f.add(r, r)), r), x)


@register("acos", ulp=2.5)
def _acos(f: Fn, x: V) -> V:
    r, big = _asin_parts(f, f.unary("fabs", x))
    r2 = f.add(r, r)
    left = f.cmp("lt", x, 0.0)
    far = f.select(left, f.sub(f.const(2 * _PIO2_HI, x.type), f.sub(r2, 2 * _PIO2_LO)), r2)
    return f.select(big, far, _from_pio2(f, f.select(left, f.neg(r), r)))


# ---------------------------------------------------------------------- hyperbolic
def _quarter_over(f: Fn, h: V) -> V:
    """exp(-x) / 2 of exp(x) / 2; something small where that is too large for it to show."""
    return f.div(f.const(0.25, h.type), at_most(f, h, 2.0**60))


@register("sinh", ulp=2.5)
def _sinh(f: Fn, x: V) -> V:
    a = f.unary("fabs", x)
    t = call(f, "expm1", f.select(f.cmp("lt", a, 1.0), a, f.const(1.0, x.type)))
    near = f.mul(f.add(t, f.div(t, f.add(t, 1.0))), 0.5)
    h = exp_half(f, a)
    far = f.sub(h, _quarter_over(f, h))
    return with_sign(f, f.select(f.cmp("lt", a, 1.0), near, far), x)


@register("cosh", ulp=2.5)
def _cosh(f: Fn, x: V) -> V:
    h = exp_half(f, f.unary("fabs", x))
    return f.add(h, _quarter_over(f, h))


def _log_twice(f: Fn, a: V) -> V:
    """log(2 a) without overflow."""
    return f.add(call(f, "log", a), math.log(2))


@register("asinh", ulp=3.0)
def _asinh(f: Fn, x: V) -> V:
    a = f.unary("fabs", x)
    c = f.select(f.cmp("lt", a, 4096.0), a, f.const(4096.0, x.type))
    root = f.unary("sqrt", f.fma(c, c, f.const(1.0, x.type)))
    near = call(f, "log1p", f.fma(c, f.div(c, f.add(root, 1.0)), c))
    return with_sign(f, f.select(f.cmp("ge", a, 4096.0), _log_twice(f, a), f.select(f.cmp("uno", a, a), a, near)), x)


@register("acosh", ulp=3.0)
def _acosh(f: Fn, x: V) -> V:
    t = f.sub(x, 1.0)
    near = call(f, "log1p", f.add(t, f.unary("sqrt", f.fma(t, t, f.add(t, t)))))
    y = f.select(f.cmp("ge", x, 4096.0), _log_twice(f, x), near)
    return f.select(f.cmp("lt", x, 1.0), f.const(math.nan, x.type), y)


@register("atanh", ulp=3.0)
def _atanh(f: Fn, x: V) -> V:
    a = f.unary("fabs", x)
    y = call(f, "log1p", f.div(f.add(a, a), f.sub(f.const(1.0, x.type), a)))
    return with_sign(f, f.mul(y, 0.5), x)


# ---------------------------------------------------------------------- roots, remainders
@register("rsqrt", F64)
@register("rsqrt", ulp=1.5)
def _rsqrt(f: Fn, x: V) -> V:
    return f.div(f.const(1.0, x.type), f.unary("sqrt", x))


def _through_f64(body: Callable[..., V]) -> Callable[..., V]:
    def emit(f: Fn, *args: V) -> V:
        return f.cast(body(f, *[f.cast(a, F64) for a in args]), F32)

    return emit


@register("cbrt", ulp=1.0)
@_through_f64
def _cbrt(f: Fn, x: V) -> V:
    return with_sign(f, call(f, "exp", f.mul(call(f, "log", f.unary("fabs", x)), 1 / 3)), x)


@register("fmod", ulp=0.5, arity=2)
def _fmod(f: Fn, x: V, y: V) -> V:
    # x - trunc(x/y) y in f64 is exact while the quotient has fewer than 29 bits; libm otherwise
    xd, yd = f.cast(x, F64), f.cast(y, F64)
    q = f.unary("trunc", f.div(xd, yd))
    r = f.fma(f.neg(q), yd, xd)
    # the rounded quotient may be one too large: then r has the sign opposite to x
    over = f.cmp("lt", f.mul(r, xd), 0.0)
    same = f.cmp("gt", f.mul(xd, yd), 0.0)
    r = f.select(over, f.select(same, f.add(r, yd), f.sub(r, yd)), r)
    fast = with_sign(f, f.unary("fabs", f.cast(r, F32)), x)
    fast = f.select(f.cmp("lt", f.unary("fabs", x), f.unary("fabs", y)), x, fast)
    rare = f.not_(f.cmp("lt", f.unary("fabs", q), 2.0**28))
    return f.if_else(any_lane(f, rare), lambda: [f.select(rare, f.rem(x, y), fast)], lambda: [fast], [x.type])[0]


@register("remainder", F64, arity=2)
@register("remainder", ulp=1.0, arity=2)
def _remainder(f: Fn, x: V, y: V) -> V:
    """With the sign of the divisor, as torch.remainder."""
    r = call(f, "fmod", x, y)
    differs = f.and_(f.cmp("ne", r, 0.0), f.xor(f.cmp("lt", r, 0.0), f.cmp("lt", y, 0.0)))
    return f.select(differs, f.add(r, y), r)


# ---------------------------------------------------------------------- error function family
# (1 + 2a) exp(a^2) erfc(a) in (a - 3.75) / (a + 3.75) for 0 <= a <= 10.6; minimax, 2e-12 (form: Shepherd and
# Laframboise 1981)
_ERFC_P = (
    3.4450008122181158e-6,
    4.4944198306133676e-5,
    5.7788482252044819e-5,
    -0.00030205532824075933,
    0.00028519686271841438,
    0.0017570971308347789,
    -0.0097439778680430927,
    0.028362440374206169,
    -0.058693744238037396,
    0.092304276160994547,
    -0.10880390900115459,
    0.082276741150470524,
    0.0035854149834222887,
    -0.14024059862250461,
    1.237512630839923,
)
# erfinv(x) / x in w - 2.5 and sqrt(w) - 3, w = -log(1 - x^2) (form: Giles 2010); minimax, 2e-11 for w < 5, 2e-9 for w <
# 17
_ERFINV_NEAR = (
    -3.8988478314565972e-13,
    -2.0549571389962714e-11,
    1.3086084501805793e-10,
    8.2041919864190128e-10,
    -1.0914756126714146e-8,
    1.3778004781153844e-8,
    4.7886733437169538e-7,
    -3.4173962274548636e-6,
    -4.996278203495798e-6,
    0.00021825106221981498,
    -0.0012527077827232656,
    -0.0041773180321518162,
    0.24664027672086873,
    1.5014093511301678,
)
_ERFINV_FAR = (
    -5.619977401976309e-6,
    -2.1611609950470842e-5,
    0.00016894967730281566,
    -0.00029045284685747275,
    -0.00012489331552609718,
    0.0014826768222759233,
    -0.0035656491873300108,
    0.0056858819167973054,
    -0.0076429883550232224,
    0.0094454539708216824,
    1.0016752485444486,
    2.8329767995603789,
)
# the same in sqrt(w) - 3 for all of f64 (w < 37.5), 5e-7
_ERFINV_FAR64 = (
    8.5132475446750608e-7,
    -1.1665934667657819e-5,
    6.0805261827774115e-5,
    -0.00012329602125001074,
    -0.00012552902520296989,
    0.0012996735431322194,
    -0.0034716510167896018,
    0.0057442059581724525,
    -0.0076847293919495644,
    0.0094392744547583611,
    1.0016793259728567,
    2.8329769584278829,
)


@register("erfc", ulp=1.0)
@_through_f64
def _erfc(f: Fn, x: V) -> V:
    a = f.unary("fabs", x)
    a = f.select(f.cmp("gt", a, 10.6), f.const(10.6, x.type), a)
    p = poly(f, f.div(f.sub(a, 3.75), f.add(a, 3.75)), _ERFC_P)
    y = f.div(f.mul(p, call(f, "exp_below", f.neg(f.mul(a, a)))), f.add(f.add(a, a), 1.0))
    y = f.select(f.cmp("lt", x, 0.0), f.sub(f.const(2.0, x.type), y), y)
    return f.select(f.cmp("gt", x, 10.0542), f.const(0.0, x.type), y)  # nothing is to underflow where it is rounded to f32


def _erfinv_guess(f: Fn, x: V, far: tuple[float, ...]) -> V:
    """erfinv(x) for f64 |x| < 1."""
    one = f.const(1.0, x.type)
    w = f.neg(call(f, "log", f.mul(f.sub(one, x), f.add(one, x))))
    near = poly(f, f.sub(w, 2.5), _ERFINV_NEAR)
    tail = poly(f, f.sub(f.unary("sqrt", w), 3.0), far)
    return f.mul(x, f.select(f.cmp("lt", w, 5.0), near, tail))


def _erfinv_ends(f: Fn, x: V, y: V) -> V:
    """Infinite at -1 and 1; NaN beyond."""
    a = f.unary("fabs", x)
    y = f.select(f.cmp("eq", a, 1.0), with_sign(f, f.const(math.inf, x.type), x), y)
    return keep_zero(f, x, f.select(f.cmp("gt", a, 1.0), f.const(math.nan, x.type), y))


@register("erfinv", ulp=1.0)
@_through_f64
def _erfinv(f: Fn, x: V) -> V:
    return _erfinv_ends(f, x, _erfinv_guess(f, x, _ERFINV_FAR))


@register("erfinv", F64)
def _erfinv64(f: Fn, x: V) -> V:
    # a step of Halley's, on erfc beyond 1/2, where 1 - |x| is exact and erf is flat
    a, half_root_pi = f.unary("fabs", x), math.sqrt(math.pi) / 2
    y = _erfinv_guess(f, a, _ERFINV_FAR64)
    beyond = f.sub(call(f, "erfc", y), f.sub(f.const(1.0, x.type), a))
    gap = f.select(f.cmp("gt", a, 0.5), beyond, f.sub(a, erf_near(f, at_most(f, y, 1.0))))
    step = f.mul(gap, f.mul(call(f, "exp", f.mul(y, y)), half_root_pi))
    y = f.add(y, f.fma(f.mul(step, step), y, step))
    return _erfinv_ends(f, x, with_sign(f, y, x))


# ---------------------------------------------------------------------- gamma family
_LANCZOS = (
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)  # g = 7, n = 9 (Godfrey)


def _sincos_pi(f: Fn, x: V) -> tuple[V, V]:
    """(sin(pi r), cos(pi r)) of f64 x = n + r, |r| <= 1/2: right up to a common sign."""
    r = f.sub(x, f.unary("roundeven", x))
    t = f.mul(r, math.pi)
    z = f.mul(t, t)
    s = poly(f, z, [(-1) ** k / math.factorial(2 * k + 1) for k in range(9, -1, -1)])
    c = poly(f, z, [(-1) ** k / math.factorial(2 * k) for k in range(10, -1, -1)])
    return f.mul(s, t), c


@register("lgamma", ulp=2.0)
@_through_f64
def _lgamma(f: Fn, x: V) -> V:
    """log |Gamma(x)|: Lanczos' series for x >= 1/2, reflected below."""
    one = f.const(1.0, x.type)
    mirror = f.cmp("lt", x, 0.5)
    u = f.sub(f.select(mirror, f.sub(one, x), x), 1.0)
    total = f.const(0.99999999999980993, x.type)
    for k, c in enumerate(_LANCZOS):
        total = f.add(total, f.div(f.const(c, x.type), f.add(u, float(k + 1))))
    t = f.add(u, 7.5)
    y = f.fma(f.add(u, 0.5), f.sub(call(f, "log", t), 1.0), f.const(0.5 * math.log(2 * math.pi) - 7.0, x.type))
    y = f.add(y, call(f, "log", total))
    sine = f.unary("fabs", _sincos_pi(f, x)[0])
    y = f.select(mirror, f.sub(f.sub(f.const(math.log(math.pi), x.type), call(f, "log", sine)), y), y)
    y = f.select(f.or_(f.cmp("eq", x, 1.0), f.cmp("eq", x, 2.0)), f.const(0.0, x.type), y)
    pole = f.and_(f.cmp("le", x, 0.0), f.cmp("eq", x, f.unary("trunc", x)))
    y = f.select(f.or_(pole, f.cmp("eq", f.unary("fabs", x), math.inf)), f.const(math.inf, x.type), y)
    return y


@register("digamma", F64)
def _digamma64(f: Fn, x: V) -> V:
    # ATen's calc_digamma (after Cephes psi): reflection for x < 0, recurrence up to 10, asymptotic series
    one, zero = f.const(1.0, x.type), f.const(0.0, x.type)
    mirror = f.cmp("lt", x, 0.0)
    u = f.select(mirror, f.sub(one, x), x)
    low = f.cmp("lt", u, 10.0)
    v, p, q = f.select(low, u, one), zero, one
    for k in range(10):  # sum of 1 / (v + k) as p / q
        vk = f.add(v, float(k)) if k else v
        p, q = f.fma(p, vk, q), f.mul(q, vk)
    w = f.select(low, f.add(u, 10.0), u)
    z = f.div(one, f.mul(w, w))
    series = poly(
        f,
        z,
        (
            8.33333333333333333333e-2,
            -2.10927960927960927961e-2,
            7.57575757575757575758e-3,
            -4.16666666666666666667e-3,
            3.96825396825396825397e-3,
            -8.33333333333333333333e-3,
            8.33333333333333333333e-2,
        ),
    )
    y = f.sub(f.sub(call(f, "log", w), f.div(f.const(0.5, x.type), w)), f.mul(z, series))
    y = f.sub(y, f.select(low, f.div(p, q), zero))
    sine, cosine = _sincos_pi(f, x)
    y = f.select(mirror, f.sub(y, f.div(f.mul(cosine, math.pi), sine)), y)
    pole = f.and_(mirror, f.cmp("eq", x, f.unary("trunc", x)))
    y = f.select(pole, f.const(math.nan, x.type), y)
    return f.select(f.cmp("eq", x, 0.0), with_sign(f, f.const(math.inf, x.type), f.neg(x)), y)


@register("digamma", ulp=2.0)
@_through_f64
def _digamma(f: Fn, x: V) -> V:
    return call(f, "digamma", x)
