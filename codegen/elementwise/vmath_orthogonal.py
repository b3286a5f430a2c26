"""Orthogonal polynomials by their recurrences, one number at a time (as ATen computes them)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dhlo.codegen.elementwise.script import script
from dhlo.codegen.elementwise.script_math import register_script
from dhlo.codegen.elementwise.vmath_base import NATIVE
from dhlo.codegen.kernel_ir.builder import F32, Fn, V

__all__: list[str] = []

_MOST = 2.0**24  # degrees beyond it, which f32 can't tell apart, give NaN
_HERMITE_MOST = 512.0


@script
def _degree(n: float) -> int:
    """Truncated; negative for what has no value or none that is finite in time."""
    return -2 if math.isnan(n) or n > _MOST else int(max(n, -1.0))


@script
def _unless_known(n: int) -> float:
    return math.nan if n == -2 else 0.0


@script
def _recurrence(x: float, n: int, q: float) -> float:
    """p_n of p_k = 2 x p_(k-1) - p_(k-2) with p_0 = 1 and p_1 = q."""
    if n == 0:
        return 1.0
    p = 1.0
    k = 1
    while k < n and not math.isnan(q):
        p, q = q, (x + x) * q - p
        k += 1
    return q


@script
def _alternating(n: int) -> float:
    return 1.0 if n % 2 == 0 else -1.0


@script
def chebyshev_polynomial_t(x: float, degree: float) -> float:
    """T_n(x), the cosine of n acos(x)."""
    n = _degree(degree)
    if n < 0:
        return _unless_known(n)
    if abs(x) == 1.0:
        return 1.0 if x > 0.0 else _alternating(n)
    if n > 6 and abs(x) < 1.0:
        return math.cos(n * math.acos(x))
    return _recurrence(x, n, x)


@script
def chebyshev_polynomial_u(x: float, degree: float) -> float:
    """U_n(x)."""
    n = _degree(degree)
    if n < 0:
        return _unless_known(n)
    if abs(x) == 1.0:
        return (n + 1.0) * (1.0 if x > 0.0 else _alternating(n))
    if n > 8 and abs(x) < 1.0:
        angle = math.acos(x)
        return math.sin((n + 1.0) * angle) / math.sin(angle)
    return _recurrence(x, n, x + x)


@script
def chebyshev_polynomial_v(x: float, degree: float) -> float:
    """V_n(x)."""
    n = _degree(degree)
    if n < 0:
        return _unless_known(n)
    if abs(x) == 1.0:
        return 1.0 if x > 0.0 else _alternating(n) * (n + n + 1.0)
    if n > 8 and abs(x) < 1.0:
        angle = math.acos(x)
        return math.cos((n + 0.5) * angle) / math.cos(angle / 2.0)
    return _recurrence(x, n, x + x - 1.0)


@script
def chebyshev_polynomial_w(x: float, degree: float) -> float:
    """W_n(x)."""
    n = _degree(degree)
    if n < 0:
        return _unless_known(n)
    if abs(x) == 1.0:
        return n + n + 1.0 if x > 0.0 else _alternating(n)
    if n > 8 and abs(x) < 1.0:
        angle = math.acos(x)
        return math.sin((n + 0.5) * angle) / math.sin(angle / 2.0)
    return _recurrence(x, n, x + x + 1.0)


@script
def hermite_polynomial_h(x: float, degree: float) -> float:
    """H_n(x), the physicists' polynomial."""
    n = _degree(min(degree, 2.0 * _HERMITE_MOST))
    if n < 0:
        return _unless_known(n)
    if n == 0:
        return 1.0
    if n > _HERMITE_MOST:
        return math.nan
    p, q = 1.0, x + x
    for k in range(1, n):
        p, q = q, (x + x) * q - 2.0 * k * p
    return q


@script
def hermite_polynomial_he(x: float, degree: float) -> float:
    """He_n(x), the probabilists' polynomial."""
    n = _degree(min(degree, 2.0 * _HERMITE_MOST))
    if n < 0:
        return _unless_known(n)
    if n == 0:
        return 1.0
    if n > _HERMITE_MOST:
        return math.nan
    p, q = 1.0, x
    for k in range(1, n):
        p, q = q, x * q - k * p
    return q


@script
def laguerre_polynomial_l(x: float, degree: float) -> float:
    """L_n(x)."""
    n = _degree(degree)
    if n < 0:
        return _unless_known(n)
    if n == 0 or x == 0.0:
        return 1.0
    p, q, k = 1.0, 1.0 - x, 1
    while k < n and not math.isnan(q):
        p, q = q, ((k + k + (1.0 - x)) * q - k * p) / (k + 1.0)
        k += 1
    return q


@script
def legendre_polynomial_p(x: float, degree: float) -> float:
    """P_n(x)."""
    n = _degree(degree)
    if n < 0:
        return _unless_known(n)
    if abs(x) == 1.0:
        return 1.0 if x > 0.0 else _alternating(n)
    if n == 0:
        return 1.0
    p, q, k = 1.0, x, 1
    while k < n and not math.isnan(q):
        p, q = q, ((k + k + 1.0) * x * q - k * p) / (k + 1.0)
        k += 1
    return q


def _limited(name: str) -> None:
    """Hermite's polynomials of degrees over 128 are NaN in f32, as ATen has them: they overflow."""
    emit = NATIVE[name, F32]

    def limited(f: Fn, x: V, n: V) -> V:
        return f.select(f.cmp("gt", n, 128.0), f.const(math.nan, x.type), emit(f, x, n))

    NATIVE[name, F32] = limited


_POLYNOMIALS: list[Callable[..., Any]] = [
    chebyshev_polynomial_t,
    chebyshev_polynomial_u,
    chebyshev_polynomial_v,
    chebyshev_polynomial_w,
    hermite_polynomial_h,
    hermite_polynomial_he,
    laguerre_polynomial_l,
    legendre_polynomial_p,
]
for _f in _POLYNOMIALS:
    register_script(_f.__name__, _f, 2)
for _name in ("hermite_polynomial_h", "hermite_polynomial_he"):
    _limited(_name)
