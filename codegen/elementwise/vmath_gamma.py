"""Hurwitz' zeta function and the incomplete gamma functions, one number at a time (after Cephes, as SciPy and ATen have them)."""

from __future__ import annotations

import math

from dhlo.codegen.elementwise.script import script
from dhlo.codegen.elementwise.script_math import register_script

__all__: list[str] = []

_EPS = 2.0**-53
# (2k)! / B_2k
_ZETA = (
    12.0,
    -720.0,
    30240.0,
    -1209600.0,
    47900160.0,
    -1.8924375803183791606e9,
    7.47242496e10,
    -2.950130727918164224e12,
    1.1646782814350067249e14,
    -4.5979787224074726105e15,
    1.8152105401943546773e17,
    -7.1661652561756670113e18,
)
_LANCZOS_G = 6.024680040776729583740234375
# Gamma(x) e^g / (x + g - 1/2)^(x - 1/2) e^(x - 1/2 + g) as a quotient (Boost's lanczos13m53)
_LANCZOS_NUM = (
    0.006061842346248906525783753964555936883222,
    0.5098416655656676188125178644804694509993,
    19.51992788247617482847860966235652136208,
    449.9445569063168119446858607650988409623,
    6955.999602515376140356310115515198987526,
    75999.29304014542649875303443598909137092,
    601859.6171681098786670226533699352302507,
    3481712.15498064590882071018964774556468,
    14605578.08768506808414169982791359218571,
    43338889.32467613834773723740590533316085,
    86363131.28813859145546927288977868422342,
    103794043.1163445451906271053616070238554,
    56906521.91347156388090791033559122686859,
)
_LANCZOS_DEN = (
    1.0,
    66.0,
    1925.0,
    32670.0,
    357423.0,
    2637558.0,
    13339535.0,
    45995730.0,
    105258076.0,
    150917976.0,
    120543840.0,
    39916800.0,
    0.0,
)
# Of Temme's expansion for a and x both large and near (DLMF 8.12.8): in eta, of the terms in 1 and in 1 / a
_TEMME0 = (1 / 2835, 1 / 864, -2 / 135, 1 / 12, -1 / 3)
_TEMME1 = (1 / 288, -1 / 540)
_LARGE = 1e6
_MOST = 100000  # terms of a series; those for a below _LARGE need 9 sqrt(a)


@script
def zeta(x: float, q: float) -> float:
    """The sum of (k + q)^-x over k >= 0, by Euler and Maclaurin."""
    if x == 1.0:
        return math.inf
    if x < 1.0 or math.isnan(x) or math.isnan(q):
        return math.nan
    if q <= 0.0:
        if q == math.floor(q):
            return math.inf
        if x != math.floor(x):
            return math.nan
    s = math.pow(q, -x)
    a, b, i = q, 0.0, 0
    while (i < 9 or a <= 9.0) and i < _MOST:
        i += 1
        a += 1.0
        b = math.pow(a, -x)
        s += b
        if abs(b) < _EPS * abs(s):
            return s
    s += b * a / (x - 1.0) - 0.5 * b
    w, f, k = a, 1.0, 0.0
    for c in _ZETA:
        f *= x + k
        b /= w
        t = f * b / c
        s += t
        if abs(t) < _EPS * abs(s):
            return s
        k += 1.0
        f *= x + k
        b /= w
        k += 1.0
    return s


@script
def _horner(x: float, coefs: tuple[float, ...]) -> float:
    y = 0.0
    for c in coefs:
        y = y * x + c
    return y


@script
def _lanczos(x: float) -> float:
    """The quotient of _LANCZOS_NUM and _LANCZOS_DEN at x >= 1, or below."""
    num, den = 0.0, 0.0
    if x > 1.0:
        for i in range(13):
            num = num / x + _LANCZOS_NUM[12 - i]
            den = den / x + _LANCZOS_DEN[12 - i]
    else:
        for i in range(13):
            num = num * x + _LANCZOS_NUM[i]
            den = den * x + _LANCZOS_DEN[i]
    return num / den


@script
def _factor(a: float, x: float) -> float:
    """x^a e^-x / Gamma(a)."""
    if abs(a - x) > 0.4 * abs(a):
        y = a * math.log(x) - x - math.lgamma(a)
        return 0.0 if y < -745.0 else math.exp(y)
    fac = a + _LANCZOS_G - 0.5
    y = math.sqrt(fac / math.e) / _lanczos(a)
    if a < 200.0 and x < 200.0:
        return y * math.exp(a - x) * math.pow(x / fac, a)
    t = (x - a - _LANCZOS_G + 0.5) / fac
    return y * math.exp(a * (math.log1p(t) - t) + x * (0.5 - _LANCZOS_G) / fac)


@script
def _lower(a: float, x: float) -> float:
    """The lower function by its power series (DLMF 8.11.4)."""
    y = _factor(a, x)
    if y == 0.0:
        return 0.0
    r, c, s = a, 1.0, 1.0
    for _ in range(_MOST):
        r += 1.0
        c *= x / r
        s += c
        if not c > _EPS * s:
            break
    return s * y / a


@script
def _upper(a: float, x: float) -> float:
    """The upper function by a series without cancellation (DLMF 8.7.3), for small x."""
    fac, s = 1.0, 0.0
    for n in range(1, 2000):
        fac *= -x / n
        t = fac / (a + n)
        s += t
        if not abs(t) > _EPS * abs(s):
            break
    log = a * math.log(x)
    return -math.expm1(log - math.lgamma(1.0 + a)) - math.exp(log - math.lgamma(a)) * s


@script
def _upper_fraction(a: float, x: float) -> float:
    """The upper function by its continued fraction (DLMF 8.9.2)."""
    factor = _factor(a, x)
    if factor == 0.0:
        return 0.0
    y = 1.0 - a
    z = x + y + 1.0
    c, p2, q2, p1, q1 = 0.0, 1.0, x, x + 1.0, z * x
    s = p1 / q1
    for _ in range(_MOST):
        c += 1.0
        y += 1.0
        z += 2.0
        p = p1 * z - p2 * y * c
        q = q1 * z - q2 * y * c
        t = 1.0
        if q != 0.0:
            r = p / q
            t = abs((s - r) / r)
            s = r
        p2, p1, q2, q1 = p1, p, q1, q
        if abs(p) > 2.0**52:
            p2, p1, q2, q1 = p2 * 2.0**-52, p1 * 2.0**-52, q2 * 2.0**-52, q1 * 2.0**-52
        if not t > _EPS:
            break
    return s * factor


@script
def _uniform(a: float, x: float, sign: float) -> float:
    """The upper function, or the lower for sign -1, for large a near x (DLMF 8.12.3, 8.12.4)."""
    sigma = (x - a) / a
    eta = math.sqrt(-2.0 * _log1pmx(sigma))
    if x < a:
        eta = -eta
    s = _horner(eta, _TEMME0) + _horner(eta, _TEMME1) / a
    e = math.exp(-0.5 * a * eta * eta) / math.sqrt(2.0 * math.pi * a)
    return 0.5 * math.erfc(sign * eta * math.sqrt(a / 2.0)) + sign * e * s


@script
def _log1pmx(x: float) -> float:
    """log(1 + x) - x, by its series where that is short."""
    if abs(x) > 0.01:
        return math.log1p(x) - x
    s, p = 0.0, -x * x
    for k in range(2, 12):
        s += p / k
        p *= -x
    return s


@script
def igammac(a: float, x: float) -> float:
    """Gamma(a, x) / Gamma(a), the regularised upper incomplete gamma function."""
    if x < 0.0 or a < 0.0 or math.isnan(a) or math.isnan(x):
        return math.nan
    if a == 0.0:
        return 0.0 if x > 0.0 else math.nan
    if x == 0.0:
        return 1.0
    if math.isinf(a):
        return math.nan if math.isinf(x) else 1.0
    if math.isinf(x):
        return 0.0
    if a > _LARGE and abs(x - a) < 4.5 * math.sqrt(a):
        return _uniform(a, x, 1.0)
    if x > 1.1 and x >= a:
        return _upper_fraction(a, x)
    if x <= 1.1 and (-0.4 / math.log(x) >= a if x <= 0.5 else x * 1.1 >= a):
        return _upper(a, x)
    return 1.0 - _lower(a, x)


@script
def igamma(a: float, x: float) -> float:
    """The regularised lower incomplete gamma function."""
    if x < 0.0 or a < 0.0 or math.isnan(a) or math.isnan(x):
        return math.nan
    if a == 0.0:
        return 1.0 if x > 0.0 else math.nan
    if x == 0.0:
        return 0.0
    if math.isinf(a):
        return math.nan if math.isinf(x) else 0.0
    if math.isinf(x):
        return 1.0
    if a > _LARGE and abs(x - a) < 4.5 * math.sqrt(a):
        return _uniform(a, x, -1.0)
    if x > 1.0 and x > a:
        return 1.0 - igammac(a, x)
    return _lower(a, x)


register_script("zeta", zeta, 2)
register_script("igamma", igamma, 2)
register_script("igammac", igammac, 2)
