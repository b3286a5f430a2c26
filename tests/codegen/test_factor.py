"""The algorithms of factorisations as Python, real and complex, against numpy; what their kernels must do at the extremes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dhlo.codegen.families.factor import general, indefinite, orthogonal, spectral, triangular

SIZES = [(0, 0), (1, 1), (2, 2), (1, 4), (4, 1), (3, 5), (5, 3), (7, 7), (12, 9)]
KINDS = [np.float64, np.complex128]
RANDOM = np.random.default_rng(0)


def draw(kind: Any, *shape: int) -> Any:
    x = RANDOM.standard_normal(shape)
    return (x + 1j * RANDOM.standard_normal(shape) if kind is np.complex128 else x).astype(kind)


def near(a: Any, b: Any, scale: float = 1.0) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=5e-14 * scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_factors_of_any_shape(kind: Any, size: tuple[int, int]) -> None:
    (m, n), k = size, min(size)
    a, out, work = draw(kind, m, n), np.zeros(size, kind), np.zeros(500, kind)
    pivots, info = np.zeros(k, int), np.zeros(1, int)
    triangular.lu(m, n, a, out, pivots, info, work)
    permuted = a.copy()
    for i, p in enumerate(pivots):
        permuted[[i, p - 1]] = permuted[[p - 1, i]]
    near((np.tril(out[:, :k], -1) + np.eye(m, k)) @ np.triu(out[:k]), permuted)
    assert info[0] == 0 and (abs(np.tril(out[:, :k], -1)) <= 1.5).all()

    taus, q, padded = np.zeros(k, kind), np.zeros((m, m), kind), np.zeros((m, m), kind)
    orthogonal.qr(m, n, a, out, taus, work)
    padded[:, :k] = out[:, :k]
    orthogonal.householder_product(m, m, k, padded, taus, q, work)
    near(q @ np.triu(out), a)
    near(q.conj().T @ q, np.eye(m))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_singular_values_of_any_shape(kind: Any, size: tuple[int, int], scale: float) -> None:
    (m, n), k, info = size, min(size), np.ones(1, int)
    a = draw(kind, m, n) * scale
    if k > 2:
        a[:, 0] = a[:, 1]  # not of full rank
    for columns in (k, max(m, n)):
        rows, cols = (columns, k) if m >= n else (k, columns)
        u, s, vh = np.zeros((m, rows), kind), np.zeros(k), np.zeros((cols, n), kind)
        spectral.svd(max(m, n), k, columns, a, u, s, vh, info, np.zeros(1000, kind), np.zeros(100), m < n, True)
        assert info[0] == 0
        near((u[:, :k] * s) @ vh[:k], a, 10 * scale)
        near(u.conj().T @ u, np.eye(rows))
        near(vh @ vh.conj().T, np.eye(cols))
        near(s, np.linalg.svd(a, compute_uv=False), 10 * scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 2, 5, 13])
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_eigenvalues_of_hermitian_matrices(kind: Any, n: int, scale: float) -> None:
    x = draw(kind, n, n)
    for a in (x + x.conj().T, np.eye(n, dtype=kind), np.zeros((n, n), kind)):
        given = a * scale
        w, v, info = np.zeros(n), np.zeros((n, n), kind), np.ones(1, int)
        lower = np.tril(given) + np.eye(n) * (
            3j * scale if kind is np.complex128 else 0
        )  # the diagonal's imaginary part doesn't count
        spectral.eigh(n, lower, w, v, info, np.zeros(1000, kind), np.zeros(100), False, True)
        assert info[0] == 0
        near((v * w) @ v.conj().T, given, 10 * scale)
        near(v.conj().T @ v, np.eye(n))
        near(w, np.linalg.eigvalsh(given), 10 * scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 2, 5, 13])
def test_eigenvalues_of_general_matrices(kind: Any, n: int) -> None:
    x = draw(kind, n, n)
    scales = 2.0 ** np.arange(-n, n, 2)[:n]
    turn = np.roll(np.eye(n, dtype=kind), 1, 0)
    for a in (x, x * scales / scales[:, None], turn, np.triu(x), np.zeros((n, n), kind), x * 1e-200, x * 1e200):
        w, v, info = np.zeros(n, complex), np.zeros((n, n), complex), np.ones(1, int)
        general.eig(n, a, w, v, info, np.zeros(2000, complex), np.zeros(100), True)
        assert info[0] == 0
        near(a @ v, v * w, 100 * abs(a).max(initial=1e-300))
        near((abs(v) ** 2).sum(0), np.ones(n))
        if kind is np.float64:
            alone = w.imag == 0
            assert (v[:, alone].imag == 0).all()
            pairs = w[~alone].reshape(-1, 2)
            assert (pairs[:, 0] == pairs[:, 1].conj()).all() and (pairs[:, 0].imag > 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 2, 5, 11])
@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("small", [1.0, 1e-2])
def test_indefinite_systems(kind: Any, n: int, hermitian: bool, small: float) -> None:
    x = draw(kind, n, n)
    a = x + (x.conj().T if hermitian else x.T)
    a[np.arange(n), np.arange(n)] *= small
    out, pivots, info, b = np.zeros((n, n), kind), np.zeros(n, int), np.zeros(1, int), draw(kind, n, 3)
    indefinite.ldl(n, a, out, pivots, info, np.zeros(200, kind), hermitian)
    want = torch.linalg.ldl_factor_ex(torch.from_numpy(a), hermitian=hermitian)
    near(out, want.LD, 100)
    assert pivots.tolist() == want.pivots.tolist() and info[0] == 0
    solved = np.zeros((n, 3), kind)
    indefinite.ldl_solve(n, 3, out, pivots.astype(kind), b, solved, np.zeros(50, kind), hermitian)
    near(a @ solved, b, 1000)


def test_what_is_not_positive_definite_is_named() -> None:
    out, info = np.zeros((3, 3)), np.zeros(1, int)
    triangular.cholesky(3, np.diag([1.0, -1.0, 1.0]), out, info, np.zeros(20))
    assert info[0] == 2 and np.isnan(out[1, 1])
    triangular.lu(3, 3, np.zeros((3, 3)), out, np.zeros(3, int), info, np.zeros(20))
    assert info[0] == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_named(bad: float) -> None:
    """As many values aren't found as there are, and they are NaN."""
    a, info, work, reals = np.diag([1.0, 2.0, bad, 4.0]), np.zeros(3, int), np.zeros(500), np.zeros(100)
    v, ascending, descending, any_order = np.zeros((4, 4)), np.zeros(4), np.zeros(4), np.zeros(4, complex)
    spectral.eigh(4, a, ascending, v, info[0:], work, reals, False, True)
    spectral.svd(4, 4, 4, a, v, descending, v.copy(), info[1:], work, reals, False, True)
    general.eig(4, a, any_order, v.astype(complex), info[2:], work.astype(complex), reals, True)
    assert info.tolist() == [4, 4, 4]
    assert np.isnan(ascending).all() and np.isnan(descending).all() and np.isnan(any_order).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_converge_is_counted(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no steps allowed, values of a dense matrix aren't found; those of a diagonal one are."""
    monkeypatch.setattr(spectral, "_MOST", 0)
    monkeypatch.setattr(general, "_MOST", 0)
    for a, all_found in ((draw(kind, 5, 5), False), (np.diag(np.arange(5)).astype(kind), True)):
        v, info, work, reals = np.zeros((5, 5), kind), np.zeros(1, int), np.zeros(500, kind), np.zeros(100)
        spectral.eigh(5, a, np.zeros(5), v, info, work, reals, False, True)
        assert (info[0] == 0) == all_found
        spectral.svd(5, 5, 5, a, v, np.zeros(5), v.copy(), info, work, reals, False, True)
        assert (info[0] == 0) == all_found
        general.eig(5, a, np.zeros(5, complex), v.astype(complex), info, work.astype(complex), reals, True)
        assert (info[0] == 0) == all_found


def test_the_largest_numbers_stay_in_range() -> None:
    a, w, info = np.full((3, 3), 1.5e308), np.zeros(3), np.zeros(1, int)
    spectral.eigh(3, np.diag([1.5e308, -1e308, 1.0]), w, np.zeros((3, 3)), info, np.zeros(100), np.zeros(20), False, True)
    np.testing.assert_allclose(w, [-1e308, 1.0, 1.5e308], rtol=1e-14)
    spectral.svd(3, 3, 3, a / 4, np.zeros((3, 3)), w, np.zeros((3, 3)), info, np.zeros(100), np.zeros(20), False, True)
    np.testing.assert_allclose(w, [1.125e308, 0, 0], rtol=1e-14, atol=1e294)
