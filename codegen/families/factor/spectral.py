"""Eigenvalues of Hermitian matrices and singular values: reflections to tridiagonal or bidiagonal form, then implicit QL or QR."""

from __future__ import annotations

import math
from typing import Any

from dhlo.codegen.elementwise.script import script
from dhlo.codegen.families.factor.orthogonal import apply_reflection, reflection, to_range, unit_columns
from dhlo.codegen.families.factor.vectors import add_scaled, conj, dot, matrix, real, rotate, scale, swap

__all__ = ["eigh", "svd"]

_EPS = 2.0**-52
_TINY = 2.0**-966
_MOST = 80  # steps a value


@script
def _tridiagonal(n: int, a: Any, vs: Any, taus: Any, p: Any, d: Any, e: Any) -> None:
    """Reflections of a Hermitian matrix, row k of `vs` from k + 1 on, that leave the real diagonal d and the real
    off-diagonal e."""
    for k in range(n - 1):
        v, m = vs[k], n - 1 - k
        for i in range(k + 1, n):
            v[i] = conj(a[k, i])
        beta, tau = reflection(m, v[k + 1 :])
        d[k] = real(a[k, k])
        e[k] = beta
        taus[k] = tau
        v[k + 1] = 1.0
        c = p[n:]  # conjugates of v, then of what else is subtracted
        for i in range(k + 1, n):
            c[i] = conj(v[i])
        for i in range(k + 1, n):
            p[i] = tau * dot(m, c[k + 1 :], a[i, k + 1 :])
        # with u = tau a v: a - u v^H - v u^H + |tau|^2 (v^H a v) v v^H = a - w v^H - v w^H
        add_scaled(m, -0.5 * conj(tau) * dot(m, v[k + 1 :], p[k + 1 :]), v[k + 1 :], p[k + 1 :])
        for i in range(k + 1, n):
            add_scaled(m, -p[i], c[k + 1 :], a[i, k + 1 :])
        for i in range(k + 1, n):
            c[i] = conj(p[i])
        for i in range(k + 1, n):
            add_scaled(m, -v[i], c[k + 1 :], a[i, k + 1 :])
    if n > 0:
        d[n - 1] = real(a[n - 1, n - 1])
        e[n - 1] = 0.0


@script
def _implicit_ql(n: int, d: Any, e: Any, z: Any, vectors: bool) -> int:
    """Eigenvalues of a symmetric tridiagonal matrix, in d; the rows of z take part in the rotations (EISPACK's tql2). Returns how
    many weren't found."""
    missing = 0
    for first in range(n):
        for turn in range(_MOST + 1):
            last = first
            while last < n - 1:
                if abs(e[last]) <= _EPS * (abs(d[last]) + abs(d[last + 1])):
                    break
                last += 1
            if last == first:
                break
            if turn == _MOST:
                missing += 1
                break
            g = (d[first + 1] - d[first]) / (2.0 * e[first])
            g = d[last] - d[first] + e[first] / (g + math.copysign(math.hypot(g, 1.0), g))
            s, c, p, i = 1.0, 1.0, 0.0, last - 1
            while i >= first:
                f, b = s * e[i], c * e[i]
                r = math.hypot(f, g)
                e[i + 1] = r
                if r == 0.0:
                    d[i + 1] = d[i + 1] - p
                    e[last] = 0.0
                    break
                s, c = f / r, g / r
                g = d[i + 1] - p
                r = (d[i] - g) * s + 2.0 * c * b
                p = s * r
                d[i + 1] = g + p
                g = c * r - b
                if vectors:
                    rotate(n, c, s, z[i + 1], z[i])
                i -= 1
            if i < first:
                d[first] = d[first] - p
                e[first] = g
                e[last] = 0.0
    return missing


@script
def eigh(n: int, a: Any, values: Any, out: Any, info: Any, work: Any, reals: Any, upper: bool, vectors: bool) -> None:
    """Ascending eigenvalues of a Hermitian matrix, of which one triangle is read, and eigenvectors as columns of `out`; how many
    eigenvalues weren't found: all, NaN, of what isn't finite."""
    w, vs, z = matrix(work, n), matrix(work[n * n :], n), matrix(work[2 * n * n :], n)
    taus, p = work[3 * n * n :], work[3 * n * n + n :]
    d, e = reals, reals[n:]
    for i in range(n):
        for j in range(i + 1):
            x = conj(a[j, i]) if upper else a[i, j]
            w[i, j] = x
            w[j, i] = conj(x)
        w[i, i] = real(w[i, i])
    up = to_range(n * n, work)
    _tridiagonal(n, w, vs, taus, p, d, e)
    if vectors:
        unit_columns(n, n, z)
        for t in range(n - 1):
            k = n - 2 - t
            for j in range(k + 1, n):
                apply_reflection(n - 1 - k, vs[k, k + 1 :], taus[k], z[j, k + 1 :])
    missing = _implicit_ql(n, d, e, z, vectors)
    info[0] = n if math.isnan(up) else missing
    for i in range(n):
        least = i
        for j in range(i + 1, n):
            if d[j] < d[least]:
                least = j
        if least != i:
            value = d[i]
            d[i] = d[least]
            d[least] = value
            if vectors:
                swap(n, z[i], z[least])
        values[i] = d[i] / up
    if vectors:
        for i in range(n):
            for j in range(n):
                out[i, j] = z[j, i]


@script
def _bidiagonal(m: int, n: int, w: Any, vs: Any, left: Any, right: Any, p: Any, s: Any, e: Any) -> None:
    """Reflections of the columns in the rows of w, and of the rows in `vs`, that leave the real diagonal s and the real
    superdiagonal e."""
    for k in range(n):
        beta, tau = reflection(m - k, w[k, k:])
        s[k] = beta
        left[k] = tau
        e[k] = 0.0
        for j in range(k + 1, n):
            apply_reflection(m - k, w[k, k:], conj(tau), w[j, k:])
        if k + 1 < n:
            v = vs[k]
            for j in range(k + 1, n):
                v[j] = conj(w[j, k])
            beta, tau = reflection(n - 1 - k, v[k + 1 :])
            v[k + 1] = 1.0
            e[k] = beta
            right[k] = tau
            for i in range(k, m):
                p[i] = 0.0
            for j in range(k + 1, n):
                add_scaled(m - k, v[j], w[j, k:], p[k:])
            for j in range(k + 1, n):
                add_scaled(m - k, -tau * conj(v[j]), p[k:], w[j, k:])


@script
def _order(n: int, m: int, k: int, s: Any, u: Any, v: Any, vectors: bool) -> None:
    """Makes the singular value k positive and moves it behind the larger ones among those after it."""
    if s[k] < 0.0:
        s[k] = -s[k]
        if vectors:
            scale(n, -1.0, v[k])
    while k < n - 1 and s[k] < s[k + 1]:
        x = s[k]
        s[k] = s[k + 1]
        s[k + 1] = x
        if vectors:
            swap(n, v[k], v[k + 1])
            swap(m, u[k], u[k + 1])
        k += 1


@script
def _qr_step(n: int, m: int, k: int, p: int, s: Any, e: Any, u: Any, v: Any, vectors: bool) -> None:
    """An implicit step on the block k to p - 1."""
    most = max(max(abs(s[p - 1]), abs(s[p - 2])), max(max(abs(e[p - 2]), abs(s[k])), abs(e[k])))
    sp, spm1, epm1, sk, ek = s[p - 1] / most, s[p - 2] / most, e[p - 2] / most, s[k] / most, e[k] / most
    b = ((spm1 + sp) * (spm1 - sp) + epm1 * epm1) / 2.0
    c = (sp * epm1) * (sp * epm1)
    shift = 0.0
    if b != 0.0 or c != 0.0:
        shift = c / (b + math.copysign(math.sqrt(b * b + c), b))
    f = (sk + sp) * (sk - sp) + shift
    g = sk * ek
    for j in range(k, p - 1):
        t = math.hypot(f, g)
        cs, sn = (f / t, g / t) if t != 0.0 else (1.0, 0.0)
        if j != k:
            e[j - 1] = t
        f = cs * s[j] + sn * e[j]
        e[j] = cs * e[j] - sn * s[j]
        g = sn * s[j + 1]
        s[j + 1] = cs * s[j + 1]
        if vectors:
            rotate(n, cs, sn, v[j], v[j + 1])
        t = math.hypot(f, g)
        cs, sn = (f / t, g / t) if t != 0.0 else (1.0, 0.0)
        s[j] = t
        f = cs * e[j] + sn * s[j + 1]
        s[j + 1] = cs * s[j + 1] - sn * e[j]
        g = sn * e[j + 1]
        e[j + 1] = cs * e[j + 1]
        if vectors:
            rotate(m, cs, sn, u[j], u[j + 1])
    e[p - 2] = f


@script
def _without_zero(n: int, m: int, k: int, p: int, s: Any, e: Any, u: Any, v: Any, vectors: bool) -> None:
    """Rotates away what couples the singular value s[p - 1] = 0 to those from k on."""
    f = e[p - 2]
    e[p - 2] = 0.0
    j = p - 2
    while j >= k:
        t = math.hypot(s[j], f)
        cs, sn = (s[j] / t, f / t) if t != 0.0 else (1.0, 0.0)
        s[j] = t
        if j != k:
            f = -sn * e[j - 1]
            e[j - 1] = cs * e[j - 1]
        if vectors:
            rotate(n, cs, sn, v[j], v[p - 1])
        j -= 1


@script
def _split_at_zero(n: int, m: int, k: int, p: int, s: Any, e: Any, u: Any, v: Any, vectors: bool) -> None:
    """Rotates away what couples the singular value s[k - 1] = 0 to those before p."""
    f = e[k - 1]
    e[k - 1] = 0.0
    for j in range(k, p):
        t = math.hypot(s[j], f)
        cs, sn = (s[j] / t, f / t) if t != 0.0 else (1.0, 0.0)
        s[j] = t
        f = -sn * e[j]
        e[j] = cs * e[j]
        if vectors:
            rotate(m, cs, sn, u[j], u[k - 1])


@script
def _implicit_qr(n: int, m: int, s: Any, e: Any, u: Any, v: Any, vectors: bool) -> int:
    """Singular values of a bidiagonal matrix, in s; rows of u [., m] and v [n, n] take part (LINPACK's svdc). Returns how many
    weren't found."""
    p, steps, missing = n, 0, 0
    while p > 0:
        k = p - 2
        while k >= 0:
            if abs(e[k]) <= _TINY + _EPS * (abs(s[k]) + abs(s[k + 1])):
                e[k] = 0.0
                break
            k -= 1
        if k == p - 2 or steps > _MOST:
            missing += 1 if k != p - 2 else 0
            _order(n, m, p - 1, s, u, v, vectors)
            p -= 1
            steps = 0
            continue
        zero = p - 1
        while zero > k:
            t = abs(e[zero]) if zero < p - 1 else 0.0
            if zero > k + 1:
                t += abs(e[zero - 1])
            if abs(s[zero]) <= _TINY + _EPS * t:
                s[zero] = 0.0
                break
            zero -= 1
        if zero == k:
            _qr_step(n, m, k + 1, p, s, e, u, v, vectors)
            steps += 1
        elif zero == p - 1:
            _without_zero(n, m, k + 1, p, s, e, u, v, vectors)
        else:
            _split_at_zero(n, m, zero + 1, p, s, e, u, v, vectors)
    return missing


@script
def svd(
    m: int,
    n: int,
    columns: int,
    a: Any,
    us: Any,
    values: Any,
    vhs: Any,
    info: Any,
    work: Any,
    reals: Any,
    turned: bool,
    vectors: bool,
) -> None:
    """u diag(values) v^H of a [m, n], m >= n, or of its conjugate transpose if `turned`; descending values, `columns` columns
    of u; how many values weren't found: all, NaN, of what isn't finite."""
    w, u = matrix(work, m), matrix(work[m * n :], m)
    vs = matrix(work[m * n + m * columns :], n)
    rest = work[m * n + m * columns + n * n :]
    v, left, right, p = matrix(rest, n), rest[n * n :], rest[n * n + n :], rest[n * n + 2 * n :]
    s, e = reals, reals[n:]
    for i in range(m):
        for j in range(n):
            w[j, i] = conj(a[j, i]) if turned else a[i, j]
    up = to_range(m * n, work)
    _bidiagonal(m, n, w, vs, left, right, p, s, e)
    if vectors:
        unit_columns(m, columns, u)
        unit_columns(n, n, v)
        for t in range(n):
            k = n - 1 - t
            for j in range(k, columns):
                apply_reflection(m - k, w[k, k:], left[k], u[j, k:])
            if k < n - 1:
                for j in range(k + 1, n):
                    apply_reflection(n - 1 - k, vs[k, k + 1 :], right[k], v[j, k + 1 :])
    missing = _implicit_qr(n, m, s, e, u, v, vectors)
    info[0] = n if math.isnan(up) else missing
    for i in range(n):
        values[i] = s[i] / up
    if vectors:
        if turned:
            for i in range(n):
                for j in range(n):
                    us[i, j] = v[j, i]
            for i in range(columns):
                for j in range(m):
                    vhs[i, j] = conj(u[i, j])
        else:
            for i in range(m):
                for j in range(columns):
                    us[i, j] = u[j, i]
            for i in range(n):
                for j in range(n):
                    vhs[i, j] = conj(v[i, j])
