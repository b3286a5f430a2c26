"""Bessel functions of the first and second kind, Airy's function and the inverse normal distribution, one number at a time, after
Cephes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dhlo.codegen.elementwise import vmath_tables as T
from dhlo.codegen.elementwise.script import script
from dhlo.codegen.elementwise.script_math import register_script

__all__: list[str] = []

_TWO_OVER_PI = 2 / math.pi
_ROOT = math.sqrt(2 / math.pi)
_ROOT_PI = 1 / math.sqrt(math.pi)
_EXP_MINUS_2 = math.exp(-2)


@script
def _horner(x: float, coefs: tuple[float, ...]) -> float:
    y = 0.0
    for c in coefs:
        y = y * x + c
    return y


@script
def _chebyshev(x: float, coefs: tuple[float, ...]) -> float:
    """Cephes' chbevl: the series' highest term first, the last halved."""
    p, q, a = 0.0, 0.0, 0.0
    for c in coefs:
        p, q, a = q, a, x * a - q + c
    return 0.5 * (a - p)


@script
def _wave0(x: float, turn: float) -> float:
    """J0 of x > 5, or Y0 a quarter turn later."""
    z = 25.0 / (x * x)
    p, q = _horner(z, T.J0_PP) / _horner(z, T.J0_PQ), _horner(z, T.J0_QP) / _horner(z, T.J0_QQ)
    s, c = math.sin(x - math.pi / 4), math.cos(x - math.pi / 4)
    y = p * s + 5.0 / x * q * c if turn > 0.0 else p * c - 5.0 / x * q * s
    return y * _ROOT / math.sqrt(x)


@script
def _wave1(x: float, turn: float) -> float:
    """J1 of x > 5, or Y1 a quarter turn later."""
    z = 25.0 / (x * x)
    p, q = _horner(z, T.J1_PP) / _horner(z, T.J1_PQ), _horner(z, T.J1_QP) / _horner(z, T.J1_QQ)
    s, c = math.sin(x - 0.75 * math.pi), math.cos(x - 0.75 * math.pi)
    y = p * s + 5.0 / x * q * c if turn > 0.0 else p * c - 5.0 / x * q * s
    return y * _ROOT / math.sqrt(x)


@script
def bessel_j0(v: float) -> float:
    """J0(v)."""
    x = abs(v)
    if x > 5.0:
        return _wave0(x, 0.0)
    if x < 0.00001:
        return 1.0 - x * x / 4.0
    z = x * x
    return (z - 5.78318596294678452118) * (z - 30.4712623436620863991) * _horner(z, T.J0_RP) / _horner(z, T.J0_RQ)


@script
def bessel_j1(v: float) -> float:
    """J1(v)."""
    x = abs(v)
    if x > 5.0:
        return -_wave1(x, 0.0) if v < 0.0 else _wave1(x, 0.0)
    z = x * x
    y = _horner(z, T.J1_RP) / _horner(z, T.J1_RQ)
    return y * v * (z - 14.6819706421238932572) * (z - 49.2184563216946036703)


@script
def bessel_y0(x: float) -> float:
    """Y0(x)."""
    if x > 5.0:
        return _wave0(x, 1.0)
    if x == 0.0:
        return -math.inf
    if not x > 0.0:
        return math.nan
    z = x * x
    return _horner(z, T.Y0_YP) / _horner(z, T.Y0_YQ) + _TWO_OVER_PI * math.log(x) * bessel_j0(x)


@script
def bessel_y1(x: float) -> float:
    """Y1(x)."""
    if x > 5.0:
        return _wave1(x, 1.0)
    if x == 0.0:
        return -math.inf
    if not x > 0.0:
        return math.nan
    z = x * x
    return x * (_horner(z, T.Y1_YP) / _horner(z, T.Y1_YQ)) + _TWO_OVER_PI * (bessel_j1(x) * math.log(x) - 1.0 / x)


@script
def _i(x: float, order: float) -> float:
    """The modified function I of order 0 or 1 for x <= 2, by its series."""
    z, t = x * x / 4.0, 1.0
    s = 1.0
    for k in range(1, 16):
        t *= z / (k * (k + order))
        s += t
    return s * x / 2.0 if order > 0.0 else s


@script
def _k0(x: float, scaled: float) -> float:
    """K0(x), or exp(x) K0(x)."""
    if x == 0.0:
        return math.inf
    if not x > 0.0:
        return math.nan
    if x <= 2.0:
        y = _chebyshev(x * x - 2.0, T.K0_A) - math.log(0.5 * x) * _i(x, 0.0)
        return y * math.exp(x) if scaled > 0.0 else y
    y = _chebyshev(8.0 / x - 2.0, T.K0_B) / math.sqrt(x)
    return y if scaled > 0.0 else y * math.exp(-x)


@script
def _k1(x: float, scaled: float) -> float:
    """K1(x), or exp(x) K1(x)."""
    if x == 0.0:
        return math.inf
    if not x > 0.0:
        return math.nan
    if x <= 2.0:
        y = math.log(0.5 * x) * _i(x, 1.0) + _chebyshev(x * x - 2.0, T.K1_A) / x
        return y * math.exp(x) if scaled > 0.0 else y
    y = _chebyshev(8.0 / x - 2.0, T.K1_B) / math.sqrt(x)
    return y if scaled > 0.0 else y * math.exp(-x)


@script
def modified_bessel_k0(x: float) -> float:
    """K0(x)."""
    return _k0(x, 0.0)


@script
def modified_bessel_k1(x: float) -> float:
    """K1(x)."""
    return _k1(x, 0.0)


@script
def scaled_modified_bessel_k0(x: float) -> float:
    """exp(x) K0(x)."""
    return _k0(x, 1.0)


@script
def scaled_modified_bessel_k1(x: float) -> float:
    """exp(x) K1(x)."""
    return _k1(x, 1.0)


@script
def spherical_bessel_j0(x: float) -> float:
    """sin(x) / x."""
    if math.isinf(x):
        return 0.0
    if abs(x) < 0.5:
        z, t, s = x * x, 1.0, 1.0
        for k in range(1, 8):
            t *= -z / (2.0 * k * (2.0 * k + 1.0))
            s += t
        return s
    return math.sin(x) / x


@script
def airy_ai(x: float) -> float:
    """Ai(x)."""
    if math.isinf(x):
        return math.nan
    if x > 103.892:
        return 0.0
    if x < -2.09:
        angle = -2.0 * x * math.sqrt(-x) / 3.0
        z = 1.0 / angle
        f = 1.0 + z * z * _horner(z * z, T.AIRY_AFN) / _horner(z * z, T.AIRY_AFD)
        g = z * _horner(z * z, T.AIRY_AGN) / _horner(z * z, T.AIRY_AGD)
        angle += math.pi / 4
        return _ROOT_PI / math.sqrt(math.sqrt(-x)) * (math.sin(angle) * f - math.cos(angle) * g)
    if x >= 2.09:
        w = 2.0 * x * math.sqrt(x) / 3.0
        y = _horner(1.0 / w, T.AIRY_AN) / _horner(1.0 / w, T.AIRY_AD)
        return _ROOT_PI * y / (2.0 * math.sqrt(math.sqrt(x)) * math.exp(w))
    f, g, k, m, n, z = 1.0, x, 1.0, 1.0, x, x * x * x
    for _ in range(60):
        m *= z / ((k + 1.0) * (k + 2.0))
        n *= z / ((k + 2.0) * (k + 3.0))
        f += m
        g += n
        k += 3.0
        if not abs(m) > 2.0**-54 * abs(f):
            break
    return 0.355028053887817239260 * f - 0.258819403792806798405 * g


@script
def ndtri(p: float) -> float:
    """The x at which the standard normal distribution function is p."""
    if p == 0.0:
        return -math.inf
    if p == 1.0:
        return math.inf
    if not (p > 0.0 and p < 1.0):
        return math.nan
    upper = p > 1.0 - _EXP_MINUS_2
    y = 1.0 - p if upper else p
    if y > _EXP_MINUS_2:
        y -= 0.5
        z = y * y
        return (y + y * (z * _horner(z, T.NDTRI_P0) / _horner(z, T.NDTRI_Q0))) * math.sqrt(2 * math.pi)
    x = math.sqrt(-2.0 * math.log(y))
    z = 1.0 / x
    if x < 8.0:
        y = z * _horner(z, T.NDTRI_P1) / _horner(z, T.NDTRI_Q1)
    else:
        y = z * _horner(z, T.NDTRI_P2) / _horner(z, T.NDTRI_Q2)
    y = x - math.log(x) / x - y
    return y if upper else -y


_FUNCTIONS: list[Callable[..., Any]] = [
    bessel_j0,
    bessel_j1,
    bessel_y0,
    bessel_y1,
    modified_bessel_k0,
    modified_bessel_k1,
    scaled_modified_bessel_k0,
    scaled_modified_bessel_k1,
    spherical_bessel_j0,
    airy_ai,
    ndtri,
]
for _f in _FUNCTIONS:
    register_script(_f.__name__, _f)
