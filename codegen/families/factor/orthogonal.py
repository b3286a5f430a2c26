"""Householder's reflections: QR factors and products of reflections, in LAPACK's form (geqrf, orgqr)."""

from __future__ import annotations

import math
import sys
from typing import Any

from dhlo.codegen.elementwise.script import script
from dhlo.codegen.families.factor.vectors import add_scaled, conj, dot, imag, matrix, number, real, scale, squares

__all__ = ["apply_reflection", "householder_product", "length", "qr", "reflection", "to_range", "unit_columns"]

_SMALL, _BIG = 1e-280, 1e280
_MOST = sys.float_info.max


@script
def length(n: int, x: Any) -> float:
    """The root of the sum of squares, scaled where those would leave the range."""
    total = squares(n, x)
    if total > _SMALL and total < _BIG or n == 0:
        return math.sqrt(total)
    most = 0.0
    for i in range(n):
        most = max(most, abs(x[i]))
    if most == 0.0 or math.isnan(total) or math.isinf(most):
        return most if not math.isnan(total) else total
    total = 0.0
    for i in range(n):
        size = abs(x[i]) / most
        total += size * size
    return most * math.sqrt(total)


@script
def to_range(n: int, x: Any) -> float:
    """Scales numbers whose products might leave the range to such near 1; returns by how much. If not all are finite: makes them
    zeros and returns NaN, as what iterates until it has converged ends for finite numbers alone."""
    most, finite = 0.0, True
    for i in range(n):
        size = abs(x[i])
        finite = finite and size <= _MOST
        most = max(most, size)
    if not finite:
        for i in range(n):
            x[i] = 0.0
        return math.nan
    if most == 0.0 or (most > 1e-140 and most < 1e140):
        return 1.0
    up = 1.0 / most if most < 1e305 else 2.0**-1000
    scale(n, up, x)
    return up


@script
def reflection(n: int, x: Any) -> Any:
    """(beta, tau) of H = I - tau v v^H, v = (1, v'), such that H^H x = (beta, 0) with real beta; v' replaces x[1:] (larfg)."""
    alpha = x[0]
    rest = length(n - 1, x[1:])
    if rest == 0.0 and imag(alpha) == 0.0:
        return real(alpha), number(x, 0.0, 0.0)
    beta = math.hypot(abs(alpha), rest)
    if real(alpha) >= 0.0:
        beta = -beta
    scale(n - 1, 1.0 / (alpha - beta), x[1:])
    return beta, number(x, (beta - real(alpha)) / beta, -imag(alpha) / beta)


@script
def apply_reflection(n: int, v: Any, tau: Any, c: Any) -> None:
    """c -= tau v (v^H c), v[0] read as 1."""
    s = -tau * (c[0] + dot(n - 1, v[1:], c[1:]))
    c[0] = c[0] + s
    add_scaled(n - 1, s, v[1:], c[1:])


@script
def qr(rows: int, cols: int, a: Any, out: Any, taus: Any, work: Any) -> None:
    """R on and above the diagonal of `out`, the reflections whose product is Q below it, their factors in `taus`."""
    w = matrix(work, rows)  # columns, side by side
    for i in range(rows):
        for j in range(cols):
            w[j, i] = a[i, j]
    for k in range(min(rows, cols)):
        beta, tau = reflection(rows - k, w[k, k:])
        taus[k] = tau
        w[k, k] = beta
        for j in range(k + 1, cols):
            apply_reflection(rows - k, w[k, k:], conj(tau), w[j, k:])
    for i in range(rows):
        for j in range(cols):
            out[i, j] = w[j, i]


@script
def unit_columns(rows: int, cols: int, w: Any) -> None:
    """The first columns of the unit matrix, as rows of w."""
    for j in range(cols):
        for i in range(rows):
            w[j, i] = 0.0
        w[j, j] = 1.0


@script
def householder_product(rows: int, cols: int, count: int, a: Any, taus: Any, out: Any, work: Any) -> None:
    """The first columns of the product of the reflections that lie below the diagonal of a."""
    w, v = matrix(work, rows), work[rows * cols :]
    unit_columns(rows, cols, w)
    for t in range(count):
        k = count - 1 - t
        for i in range(k, rows):
            v[i] = a[i, k]
        for j in range(k, cols):
            apply_reflection(rows - k, v[k:], taus[k], w[j, k:])
    for i in range(rows):
        for j in range(cols):
            out[i, j] = w[j, i]
