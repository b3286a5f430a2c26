"""Factors of symmetric and Hermitian indefinite matrices by Bunch and Kaufman, in LAPACK's form (sytf2, hetf2, sytrs, hetrs)."""

from __future__ import annotations

import math
from typing import Any

from dhlo.codegen.elementwise.script import script
from dhlo.codegen.families.factor.vectors import abs1, add_scaled, conj, copy, matrix, number, real, scale, swap

__all__ = ["ldl", "ldl_solve"]

_ALPHA = (1 + math.sqrt(17)) / 8


@script
def _other(x: Any, hermitian: bool) -> Any:
    """The element on the other side of the diagonal."""
    return conj(x) if hermitian else x


@script
def _pivot(n: int, k: int, w: Any) -> Any:
    """(row that becomes the pivot's, whether its block is 2 x 2, is column k zero)."""
    size, best, most = abs1(w[k, k]), k, 0.0
    for i in range(k + 1, n):
        if abs1(w[i, k]) > most:
            best, most = i, abs1(w[i, k])
    if max(size, most) == 0.0 or math.isnan(size):
        return k, 0, 1
    if size >= _ALPHA * most:
        return k, 0, 0
    row = 0.0
    for j in range(k, best):
        row = max(row, abs1(w[best, j]))
    for i in range(best + 1, n):
        row = max(row, abs1(w[i, best]))
    if size >= _ALPHA * most * (most / row):
        return k, 0, 0
    return best, 0 if abs1(w[best, best]) >= _ALPHA * row else 1, 0


@script
def _exchange(n: int, k: int, kk: int, kp: int, w: Any, hermitian: bool) -> None:
    """Rows and columns kk and kp of what is left from k on, in the lower triangle."""
    for i in range(kp + 1, n):
        x = w[i, kk]
        w[i, kk] = w[i, kp]
        w[i, kp] = x
    for i in range(kk + 1, kp):
        x = w[i, kk]
        w[i, kk] = _other(w[kp, i], hermitian)
        w[kp, i] = _other(x, hermitian)
    w[kp, kk] = _other(w[kp, kk], hermitian)
    x = w[kk, kk]
    w[kk, kk] = w[kp, kp]
    w[kp, kp] = x
    if kk != k:
        x = w[k + 1, k]
        w[k + 1, k] = w[kp, k]
        w[kp, k] = x


@script
def ldl(n: int, a: Any, out: Any, pivots: Any, info: Any, work: Any, hermitian: bool) -> None:
    """L D L^T = a, or L D L^H: D's diagonal blocks and L below them; pivots as LAPACK gives them, negative for blocks of 2."""
    w = matrix(work, n)
    for i in range(n):
        for j in range(i + 1):
            w[i, j] = a[i, j]
        if hermitian:
            w[i, i] = real(a[i, i])
    info[0] = 0
    k = 0
    while k < n:
        kp, pair, zero = _pivot(n, k, w)
        kk = k + pair
        if zero == 1:
            if info[0] == 0:
                info[0] = k + 1
        else:
            if kp != kk:
                _exchange(n, k, kk, kp, w, hermitian)
            if pair == 0:
                d = w[k, k]
                for j in range(k + 1, n):
                    for i in range(j, n):
                        w[i, j] = w[i, j] - w[i, k] * _other(w[j, k], hermitian) / d
                    if hermitian:
                        w[j, j] = real(w[j, j])
                for i in range(k + 1, n):
                    w[i, k] = w[i, k] / d
            else:
                e = w[k + 1, k]
                d11, d22 = w[k + 1, k + 1] / e, w[k, k] / _other(e, hermitian)
                t = 1.0 / (d11 * d22 - 1.0)
                for j in range(k + 2, n):
                    x, y = w[j, k], w[j, k + 1]
                    p = t * (d11 * x - y) / _other(e, hermitian)
                    q = t * (d22 * y - x) / e
                    for i in range(j, n):
                        w[i, j] = w[i, j] - w[i, k] * _other(p, hermitian) - w[i, k + 1] * _other(q, hermitian)
                    w[j, k] = p
                    w[j, k + 1] = q
                    if hermitian:
                        w[j, j] = real(w[j, j])
        pivots[k] = -(kp + 1) if pair == 1 else kp + 1
        pivots[kk] = -(kp + 1) if pair == 1 else kp + 1
        k = kk + 1
    for i in range(n):
        for j in range(n):
            out[i, j] = w[i, j] if j <= i else number(work, 0.0, 0.0)


@script
def ldl_solve(n: int, m: int, a: Any, pivots: Any, b: Any, out: Any, work: Any, hermitian: bool) -> None:
    """x of the system whose matrix has the factors a and pivots, whole numbers; what names no row is read as one that does."""
    w = matrix(work, m)
    copy(n, m, b, w)
    k = 0
    while k < n:
        p = int(real(pivots[k]))
        pair = 1 if p < 0 and k < n - 1 else 0
        kk, kp = k + pair, min(max(abs(p) - 1, 0), n - 1)
        if kp != kk:
            swap(m, w[kk], w[kp])
        for i in range(kk + 1, n):
            add_scaled(m, -a[i, k], w[k], w[i])
            if pair == 1:
                add_scaled(m, -a[i, k + 1], w[k + 1], w[i])
        if pair == 0:
            scale(m, 1.0 / a[k, k], w[k])
        else:
            e = a[k + 1, k]
            f = _other(e, hermitian)
            d22, d11 = a[k, k] / f, a[k + 1, k + 1] / e
            t = d22 * d11 - 1.0
            for j in range(m):
                x, y = w[k, j] / f, w[k + 1, j] / e
                w[k, j] = (d11 * x - y) / t
                w[k + 1, j] = (d22 * y - x) / t
        k = kk + 1
    k = n - 1
    while k >= 0:
        p = int(real(pivots[k]))
        pair = 1 if p < 0 and k > 0 else 0
        kp = min(max(abs(p) - 1, 0), n - 1)
        for i in range(k + 1, n):
            add_scaled(m, -_other(a[i, k], hermitian), w[i], w[k])
            if pair == 1:
                add_scaled(m, -_other(a[i, k - 1], hermitian), w[i], w[k - 1])
        if kp != k:
            swap(m, w[k], w[kp])
        k = k - 1 - pair
    copy(n, m, w, out)
