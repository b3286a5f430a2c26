"""Eigenvalues of general matrices: balancing, Hessenberg form, shifted QR, in complex numbers (as EISPACK's comqr2)."""

from __future__ import annotations

import math
from typing import Any

from dhlo.codegen.elementwise.script import script
from dhlo.codegen.families.factor.orthogonal import apply_reflection, length, reflection, to_range, unit_columns
from dhlo.codegen.families.factor.vectors import (
    abs1,
    add_scaled,
    conj,
    copy,
    dot,
    imag,
    is_complex,
    matrix,
    real,
    rotate_complex,
    scale,
    swap,
)

__all__ = ["eig"]

_EPS = 2.0**-52
_TINY = 1e-290
_MOST = 60  # steps an eigenvalue


@script
def _balance(n: int, h: Any, d: Any) -> None:
    """Scales rows and columns by powers of 2 until their sums are alike; rows of eigenvectors are to be scaled by d (gebal)."""
    for i in range(n):
        d[i] = 1.0
    for _ in range(40):
        done = True
        for i in range(n):
            c, r = 0.0, 0.0
            for j in range(n):
                if j != i:
                    c += abs1(h[j, i])
                    r += abs1(h[i, j])
            if c > 1e-290 and r > 1e-290 and c < 1e290 and r < 1e290:
                f, total, was = 1.0, c + r, c
                while c < r / 2.0:
                    f *= 2.0
                    c *= 4.0
                while c >= r * 2.0:
                    f /= 2.0
                    c /= 4.0
                if was * f + r / f < 0.95 * total:
                    done = False
                    d[i] = d[i] * f
                    scale(n, 1.0 / f, h[i])
                    for j in range(n):
                        h[j, i] = h[j, i] * f
        if done:
            break


@script
def _hessenberg(n: int, h: Any, vs: Any, taus: Any, p: Any) -> None:
    """Reflections, row k of `vs` from k + 1 on, that leave zeros below the first subdiagonal."""
    for k in range(n - 2):
        v, m = vs[k], n - 1 - k
        for i in range(k + 1, n):
            v[i] = h[i, k]
        beta, tau = reflection(m, v[k + 1 :])
        v[k + 1] = 1.0
        taus[k] = tau
        for j in range(k, n):
            p[j] = 0.0
        for i in range(k + 1, n):
            add_scaled(n - k, conj(v[i]), h[i, k:], p[k:])
        for i in range(k + 1, n):
            add_scaled(n - k, -conj(tau) * v[i], p[k:], h[i, k:])
        h[k + 1, k] = beta
        for i in range(k + 2, n):
            h[i, k] = 0.0
        for j in range(k + 1, n):
            p[j] = conj(v[j])
        for i in range(n):
            add_scaled(m, -tau * dot(m, p[k + 1 :], h[i, k + 1 :]), p[k + 1 :], h[i, k + 1 :])


@script
def _root(z: Any) -> Any:
    """The square root in the right half plane."""
    size = abs(z)
    if size == 0.0:
        return complex(0.0, 0.0)
    re = math.sqrt((size + abs(real(z))) / 2.0)
    im = imag(z) / (2.0 * re)
    return complex(re, im) if real(z) >= 0.0 else complex(abs(im), math.copysign(re, imag(z)))


@script
def _shift(hi: int, h: Any, steps: int) -> Any:
    """The eigenvalue of the last 2 x 2 block that is nearer to its last element; another number now and then."""
    if steps % 10 == 0:
        return complex(abs1(h[hi, hi - 1]) + real(h[hi, hi]), imag(h[hi, hi]))
    p = (h[hi - 1, hi - 1] - h[hi, hi]) / 2.0
    bc = h[hi - 1, hi] * h[hi, hi - 1]
    q = _root(p * p + bc)
    if real(p) * real(q) + imag(p) * imag(q) < 0.0:
        q = -q
    return h[hi, hi] if abs1(p + q) == 0.0 else h[hi, hi] - bc / (p + q)


@script
def _sweep(n: int, lo: int, hi: int, shift: Any, h: Any, z: Any, c: Any, s: Any, vectors: bool) -> None:
    """A QR step on rows and columns lo to hi, carried through to all of h, and to z."""
    for i in range(lo, hi + 1):
        h[i, i] = h[i, i] - shift
    for i in range(lo, hi):
        x, y = h[i, i], h[i + 1, i]
        size, r = abs(x), math.hypot(abs(x), abs(y))
        if r == 0.0:
            c[i], s[i] = 1.0, 0.0
        elif size == 0.0:
            c[i], s[i] = 0.0, conj(y) / r
        else:
            c[i], s[i] = size / r, x / size * (conj(y) / r)
        rotate_complex(n - i, c[i], s[i], h[i, i:], h[i + 1, i:])
        h[i + 1, i] = 0.0
    for i in range(lo, hi):
        ci, si = c[i], s[i]
        for j in range(i + 2):
            x, y = h[j, i], h[j, i + 1]
            h[j, i] = ci * x + conj(si) * y
            h[j, i + 1] = ci * y - si * x
        if vectors:
            rotate_complex(n, ci, conj(si), z[i], z[i + 1])
    for i in range(lo, hi + 1):
        h[i, i] = h[i, i] + shift


@script
def _triangularise(n: int, norm: float, h: Any, z: Any, c: Any, s: Any, vectors: bool) -> int:
    """Schur's form of a Hessenberg matrix. Returns how many eigenvalues weren't found."""
    hi, steps, missing = n - 1, 0, 0
    while hi > 0:
        lo = hi
        while lo > 0:
            near = abs1(h[lo, lo]) + abs1(h[lo - 1, lo - 1])
            if abs1(h[lo, lo - 1]) <= _EPS * (near if near > 0.0 else norm):
                h[lo, lo - 1] = 0.0
                break
            lo -= 1
        if lo == hi or steps > _MOST:
            missing += 1 if lo != hi else 0
            hi -= 1
            steps = 0
        else:
            steps += 1
            _sweep(n, lo, hi, _shift(hi, h, steps), h, z, c, s, vectors)
    return missing


@script
def _eigenvectors(n: int, norm: float, h: Any, z: Any, d: Any, x: Any, out: Any) -> None:
    """Eigenvectors of Schur's form, of length 1 and with a real largest element, as rows of `out`."""
    for k in range(n):
        value, least = h[k, k], max(_EPS * norm, _TINY)
        x[k] = 1.0
        for t in range(k):
            i = k - 1 - t
            y = h[i, i] - value
            if abs1(y) < least:
                y = complex(least, 0.0)
            e = -dot(k - i, x[i + 1 :], h[i, i + 1 :]) / y
            x[i] = conj(e)  # the conjugates are at hand
            size = abs1(e)
            if size > 1e100:
                scale(k + 1 - i, 1.0 / size, x[i:])
        for i in range(n):
            out[k, i] = 0.0
        for j in range(k + 1):
            add_scaled(n, conj(x[j]), z[j], out[k])
        most, best = -1.0, 0
        for i in range(n):
            out[k, i] = out[k, i] * d[i]
        size = length(n, out[k])
        for i in range(n):
            if abs(out[k, i]) > most:
                most, best = abs(out[k, i]), i
        if most > 0.0:
            scale(n, conj(out[k, best]) / most / size, out[k])
            out[k, best] = real(out[k, best])


@script
def _in_pairs(n: int, norm: float, values: Any, rows: Any, vectors: bool) -> None:
    """Of a real matrix: makes what is real real, and complex eigenvalues neighbours of their conjugates, that with the
    positive imaginary part first."""
    k = 0
    while k < n:
        if abs(imag(values[k])) <= 4.0 * n * _EPS * norm:
            values[k] = real(values[k])
            if vectors:
                for i in range(n):
                    rows[k, i] = real(rows[k, i])
                size = length(n, rows[k])
                if size > 0.0:
                    scale(n, 1.0 / size, rows[k])
            k += 1
            continue
        best, least = -1, math.inf
        for j in range(k + 1, n):
            gap = abs1(values[j] - conj(values[k]))
            if gap < least:
                best, least = j, gap
        if best < 0:
            k += 1
            continue
        # the rest moves up by one
        if imag(values[k]) < 0.0:
            values[k] = conj(values[k])
            if vectors:
                for i in range(n):
                    rows[k, i] = conj(rows[k, i])
        while best > k + 1:
            values[best] = values[best - 1]
            if vectors:
                swap(n, rows[best], rows[best - 1])
            best -= 1
        values[k + 1] = conj(values[k])
        if vectors:
            for i in range(n):
                rows[k + 1, i] = conj(rows[k, i])
        k += 2


@script
def eig(n: int, a: Any, values: Any, out: Any, info: Any, work: Any, reals: Any, vectors: bool) -> None:
    """Eigenvalues of a matrix, and eigenvectors as columns of `out`; how many eigenvalues weren't found: all, NaN, of what isn't
    finite."""
    h, z, vs = matrix(work, n), matrix(work[n * n :], n), matrix(work[2 * n * n :], n)
    found, p, s = work[3 * n * n :], work[3 * n * n + n :], work[3 * n * n + 2 * n :]
    c, d = reals, reals[n:]
    copy(n, n, a, h)
    up = to_range(n * n, work)
    _balance(n, h, d)
    norm = 0.0
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += abs1(h[i, j])
        norm = max(norm, total)
    _hessenberg(n, h, vs, s, p)
    if vectors:
        unit_columns(n, n, z)
        for t in range(n - 2):
            k = n - 3 - t
            for j in range(k + 1, n):
                apply_reflection(n - 1 - k, vs[k, k + 1 :], s[k], z[j, k + 1 :])
    missing = _triangularise(n, norm, h, z, c, s, vectors)
    info[0] = n if math.isnan(up) else missing
    for i in range(n):
        found[i] = h[i, i]
    if vectors:
        _eigenvectors(n, norm, h, z, d, p, vs)
    if not is_complex(a):
        _in_pairs(n, norm, found, vs, vectors)
    for i in range(n):
        values[i] = found[i] / up
        if vectors:
            for j in range(n):
                out[j, i] = vs[i, j]
