"""LU and Cholesky factors, and systems of triangular matrices."""

from __future__ import annotations

import math
from typing import Any

from dhlo.codegen.elementwise.script import script
from dhlo.codegen.families.factor.rows import eliminate, subtract_above, subtract_rows
from dhlo.codegen.families.factor.vectors import abs1, add_scaled, conj, copy, is_complex, matrix, number, real, scale, swap

__all__ = ["cholesky", "determinant", "lu", "triangular_solve"]


@script
def _eliminate(rows: int, cols: int, a: Any, w: Any, pivots: Any) -> int:
    """LU factors of a, in w; the number of the first pivot that is 0, or 0."""
    info = 0
    copy(rows, cols, a, w)
    for k in range(min(rows, cols)):
        best, most = k, abs1(w[k, k])
        for i in range(k + 1, rows):
            size = abs1(w[i, k])
            if size > most:
                best, most = i, size
        pivots[k] = best + 1
        if best != k:
            swap(cols, w[k], w[best])
        pivot = w[k, k]
        if pivot == 0.0:
            if info == 0:
                info = k + 1
        elif not is_complex(w[k]):
            eliminate(rows - k - 1, cols - k - 1, w, k)
        else:
            for i in range(k + 1, rows):
                factor = w[i, k] / pivot
                w[i, k] = factor
                add_scaled(cols - k - 1, -factor, w[k, k + 1 :], w[i, k + 1 :])
    return info


@script
def lu(rows: int, cols: int, a: Any, out: Any, pivots: Any, info: Any, work: Any) -> None:
    """P L U = a, with partial pivoting: L below the diagonal of `out` and U above; the row that each was exchanged with, from 1;
    the number of the first pivot that is 0, or 0 (LAPACK's getrf)."""
    w = matrix(work, cols)
    info[0] = _eliminate(rows, cols, a, w, pivots)
    copy(rows, cols, w, out)


@script
def determinant(n: int, a: Any, det: Any, sign: Any, logs: Any, work: Any, reals: Any) -> None:
    """The determinant; a number of size 1, or 0, and the logarithm of a size, whose product it is. The pivots are kept in
    `reals`."""
    w = matrix(work, n)
    _eliminate(n, n, a, w, reals)
    total, unit, log, run = number(work, 1.0, 0.0), number(work, 1.0, 0.0), 0.0, 1.0
    for i in range(n):
        x = w[i, i]
        size = abs(x)
        if reals[i] != i + 1.0:
            total, unit = -total, -unit
        total = total * x
        unit = unit * (x / size) if size != 0.0 else 0.0 * unit
        if size > 1e-150 and size < 1e150:  # a logarithm for as many as have a product
            run = run * size
            if run < 1e-150 or run > 1e150:
                log, run = log + math.log(run), 1.0
        else:
            log += math.log(size) if size != 0.0 else -math.inf
    det[0], sign[0], logs[0] = total, unit, log + math.log(run)


@script
def cholesky(n: int, a: Any, out: Any, info: Any, work: Any) -> None:
    """L L^H = a, of whose lower triangle alone is read; the order of the first leading minor that isn't positive, or 0."""
    w = matrix(work, n)  # L^H
    info[0] = 0
    for k in range(n):
        for j in range(k, n):
            w[k, j] = conj(a[j, k])
        if not is_complex(w[k]):
            subtract_above(n - k, w, k)
        else:
            for i in range(k):
                add_scaled(n - k, -conj(w[i, k]), w[i, k:], w[k, k:])
        rest = real(w[k, k])
        if not rest > 0.0 and info[0] == 0:
            info[0] = k + 1
        root = math.sqrt(rest) if rest > 0.0 else math.nan
        w[k, k] = root
        scale(n - k - 1, 1.0 / root, w[k, k + 1 :])
    for i in range(n):
        for j in range(n):
            out[i, j] = conj(w[j, i]) if j <= i else number(work, 0.0, 0.0)


@script
def triangular_solve(n: int, m: int, a: Any, b: Any, out: Any, work: Any, upper: bool, unit: bool) -> None:
    """x of a x = b, of triangular a [n, n] (with ones on the diagonal, if `unit`) and b [n, m]."""
    w = matrix(work, m)
    copy(n, m, b, w)
    for t in range(n):
        i = n - 1 - t if upper else t
        first = i + 1 if upper else 0
        if not is_complex(w[i]):
            subtract_rows(t, m, a[i, first:], w, first, w[i])
        else:
            for j in range(first, first + t):
                add_scaled(m, -a[i, j], w[j], w[i])
        if not unit:
            scale(m, 1.0 / a[i, i], w[i])
    copy(n, m, w, out)
