"""Factorisations and what rests on them, real and complex, at several sizes from one binary; special functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dhlo
from tests.frontend.helpers import export
from tests.frontend.test_more_ops import compiled

L = torch.linalg


RANDOM = torch.Generator().manual_seed(0)


def m(*shape: int) -> torch.Tensor:
    """Far from singular: random eigenvalues lie within the root of the size."""
    return torch.randn(shape, generator=RANDOM) + 2 * shape[-1] ** 0.5 * torch.eye(*shape[-2:])


def turn(*shape: int) -> torch.Tensor:
    """The same with rows in reverse order, so that every column needs a pivot."""
    return m(*shape).flip(-2)


def positive(*shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=RANDOM)
    return x @ x.mT + torch.eye(shape[-1])


def lower(x: torch.Tensor) -> torch.Tensor:
    return x.tril() + torch.eye(x.size(-1))


def c(*shape: int) -> torch.Tensor:
    """Complex, far from singular."""
    return torch.complex(m(*shape), torch.randn(shape, generator=RANDOM))


def wide(x: torch.Tensor) -> torch.Tensor:
    """Twice as many columns as rows."""
    return torch.cat([x, x.flip(-1)], -1)


def eigh(x: torch.Tensor) -> Any:
    """Eigenvalues, and the matrix made of them and the vectors; of the upper triangle too."""
    values, v = L.eigh(x + x.mH)
    return values, (v * values.unsqueeze(-2)) @ v.mH, v.mH @ v, L.eigvalsh(x, UPLO="U")


def svd(x: torch.Tensor) -> Any:
    """Singular values, and the matrix made of them and the vectors."""
    u, s, vh = L.svd(x, full_matrices=False)
    whole, _, vhs = L.svd(x)
    return s, (u * s.unsqueeze(-2)) @ vh, L.svdvals(x), u.mH @ u, whole @ whole.mH, vhs @ vhs.mH


def eig(x: torch.Tensor) -> Any:
    """The sum of eigenvalues, and what vectors leave of their equation, which is nothing."""
    values, v = L.eig(x)
    return values.sum(-1), x.to(v.dtype) @ v - v * values.unsqueeze(-2), (v.abs() ** 2).sum(-2), L.eigvals(x).sum(-1)


def ranks(x: torch.Tensor) -> Any:
    """Ranks and conditions in all variants that take any size; these as reciprocals: of singular matrices they are infinite or
    nearly so."""
    symmetric = x + x.mT
    return (
        [1 / L.cond(x), 1 / L.cond(x, 2), L.cond(x, -2)],
        [L.matrix_rank(x), L.matrix_rank(x, 0.5), L.matrix_rank(x, atol=0.5, rtol=0.1), L.matrix_rank(symmetric, hermitian=True)],
        [L.matrix_rank(x, x.sum().abs() / 9), L.matrix_rank(x, rtol=x.sum().abs() / 99)],
    )


def lu_solve(x: torch.Tensor, y: torch.Tensor) -> Any:
    """From either side, of the matrix and of its adjoint."""
    factors, pivots = L.lu_factor(x)
    return [L.lu_solve(factors, pivots, y if left else y.mT, left=left, adjoint=a) for left in (True, False) for a in (True, False)]


def old_solves(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Systems of triangular matrices and of Cholesky factors."""
    return (
        torch.triangular_solve(y, x.triu()),
        torch.triangular_solve(y, x.tril(), upper=False, transpose=True)[0],
        torch.cholesky_solve(y, x.tril()),
        torch.cholesky_solve(y, x.triu(), upper=True),
        torch.cholesky_inverse(x.tril()),
    )


CASES: dict[str, tuple[Callable[..., Any], list[list[torch.Tensor]]]] = {
    "det": (L.det, [[turn(3, 3)], [turn(5, 5)], [turn(1, 1)], [turn(20, 20)], [torch.zeros(2, 2)]]),
    "det of many": (lambda x: (L.det(x), L.slogdet(x)), [[turn(2, 3, 3)], [turn(4, 5, 5)], [turn(1, 1, 1)], [turn(0, 3, 3)]]),
    "inv": (lambda x: (torch.inverse(x), L.matrix_power(x, -2)), [[turn(3, 3)], [turn(7, 7)], [turn(1, 1)], [turn(17, 17)]]),
    "inv of many": (L.inv, [[turn(2, 3, 4, 4)], [turn(1, 2, 3, 3)]]),
    "solve": (lambda x, y: (L.solve(x, y), L.solve(x.mT, y.mT, left=False)), [[m(2, 3, 3), m(2, 3, 4)], [m(4, 5, 5), m(4, 5, 2)]]),
    "solve for a vector": (L.solve, [[turn(3, 3), torch.randn(3)], [turn(5, 5), torch.randn(5)]]),
    "cholesky": (
        lambda x: (L.cholesky(x), L.cholesky(x, upper=True), torch.logdet(x)),
        [[positive(2, 3, 3)], [positive(4, 5, 5)], [positive(1, 30, 30)], [positive(1, 1, 1)]],
    ),
    "triangular": (
        lambda x, y: (
            L.solve_triangular(lower(x), y, upper=False),
            L.solve_triangular(lower(x).mT, y.mT, upper=True, left=False),
            L.solve_triangular(x.triu(), y, upper=True, unitriangular=True),
        ),
        [[m(3, 3), torch.randn(3, 4)], [m(5, 5), torch.randn(5, 2)]],
    ),
    "lu": (lambda x: (L.lu_factor(x), L.lu_factor(x.double())), [[turn(3, 3)], [turn(6, 6)], [turn(4, 7)], [turn(7, 4)]]),
    "a size that is a product of others": (
        L.tensorsolve,
        [[m(6, 6).reshape(2, 3, 6), torch.randn(2, 3)], [m(20, 20).reshape(5, 4, 20), torch.randn(5, 4)]],
    ),
    "qr": (
        lambda x: (L.qr(x), L.qr(x, "complete"), L.qr(x, "r")[1], L.qr(x.double())),
        [[turn(3, 5)], [turn(7, 4)], [turn(1, 1)], [turn(30, 17)]],
    ),
    "qr of complex": (L.qr, [[c(2, 3, 4)], [c(3, 5, 2)]]),
    "householder": (L.householder_product, [[m(2, 5, 3) / 9, torch.rand(2, 3)], [m(4, 7, 6) / 9, torch.rand(4, 6)]]),
    "lu of all": (L.lu, [[turn(2, 3, 3)], [turn(4, 6, 8)], [turn(1, 9, 4)]]),
    "lu of complex": (lambda x: (L.lu(x), L.det(x), L.slogdet(x)), [[c(2, 3, 3)], [c(4, 6, 6)]]),
    "lu_solve": (lu_solve, [[turn(2, 3, 3), torch.randn(3, 4)], [turn(4, 6, 6), torch.randn(6, 2)]]),
    "lu_solve of complex": (lu_solve, [[c(2, 3, 3), c(3, 4)], [c(4, 6, 6), c(6, 2)]]),
    "indefinite": (
        lambda x, y: (L.ldl_factor(x), L.ldl_solve(*L.ldl_factor(x - 3 * x.mT), y)),
        [[m(2, 3, 3), torch.randn(2, 3, 4)], [m(4, 6, 6), torch.randn(4, 6, 2)]],
    ),
    "indefinite and complex": (
        lambda x, y: (L.ldl_factor(x, hermitian=True), L.ldl_solve(*L.ldl_factor(x), y)),
        [[c(2, 3, 3), c(2, 3, 4)], [c(4, 6, 6), c(4, 6, 2)]],
    ),
    "inverse of complex": (lambda x: (L.inv(x), L.cholesky(x @ x.mH)), [[c(2, 3, 3)], [c(1, 7, 7)]]),
    "older ones": (old_solves, [[m(2, 3, 3), torch.randn(2, 3, 4)], [m(4, 6, 6), torch.randn(4, 6, 2)]]),
    "eigh": (eigh, [[m(2, 3, 3)], [m(4, 9, 9)], [m(1, 1, 1)], [m(1, 40, 40)]]),
    "eigh of complex": (eigh, [[c(2, 3, 3)], [c(1, 8, 8)]]),
    "svd": (svd, [[m(3, 3)], [m(5, 9)], [m(9, 4)], [m(1, 1)], [m(33, 20)]]),
    "svd of complex": (svd, [[c(2, 3, 4)], [c(1, 7, 2)]]),
    "svd without full rank": (lambda x: svd(wide(x).mT), [[torch.ones(3, 3)], [torch.zeros(4, 4)]]),
    "eig": (eig, [[m(2, 3, 3)], [m(4, 9, 9)], [m(1, 1, 1)]]),
    "eig of complex": (eig, [[c(2, 3, 3)], [c(1, 8, 8)]]),
    "pinv": (
        lambda x: (L.pinv(x), L.pinv(x @ x.mH, hermitian=True), L.matrix_rank(x), 1 / L.cond(x)),
        [[m(2, 3, 5)], [m(2, 4, 6)], [torch.ones(1, 3, 3)]],
    ),
    "ranks and conditions": (ranks, [[m(2, 3, 3)], [m(4, 7, 7)], [m(2, 0, 0)], [torch.ones(1, 3, 3)], [m(0, 3, 3)], [m(3, 1, 1)]]),
    "ranks and conditions of complex": (lambda x: (L.matrix_rank(x), L.cond(x), L.cond(x, -2)), [[c(2, 3, 3)], [c(0, 0, 0)]]),
    "matrix_exp": (lambda x: L.matrix_exp(x / 4), [[m(2, 3, 3)], [m(1, 1, 1)], [m(3, 9, 9)], [torch.zeros(2, 4, 4)]]),
    "matrix_exp of complex": (lambda x: L.matrix_exp(x / 4), [[c(2, 3, 3)], [c(1, 6, 6)]]),
    "special functions": (
        lambda x, n: (
            [torch.special.bessel_j1(x), torch.special.airy_ai(x), torch.special.ndtri(x.sigmoid())],
            [torch.special.zeta(x.abs() + 1.5, 2.5), torch.polygamma(3, x), torch.special.gammainc(n + 1, x.abs())],
            [torch.special.legendre_polynomial_p(x, n), torch.special.hermite_polynomial_h(x, 4), torch.special.bessel_y0(n)],
        ),
        [[torch.randn(5), torch.arange(5)], [torch.randn(33), torch.arange(33) % 9], [torch.randn(1), torch.arange(1)]],
    ),
    "nothing": (lambda x: (L.det(x), L.inv(x), L.slogdet(x)), [[m(3, 0, 0)]]),
}


# Those of complex numbers take the same steps.
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if "complex" in n else ()) for n in CASES])
def test_case(name: str) -> None:
    compiled(CASES[name][0], *CASES[name][1])


def test_singular_matrices_fail_the_call() -> None:
    model = dhlo.compile(export(L.inv, [m(3, 3)]))
    with pytest.raises(dhlo.ContractError, match=r"linalg\.inv: a matrix is singular"):
        model(torch.ones(4, 4))
    factor = dhlo.compile(export(L.cholesky, [positive(3, 3)]))
    with pytest.raises(dhlo.ContractError, match=r"linalg\.cholesky: a matrix is singular, or not positive definite"):
        factor(-torch.eye(4))


@pytest.mark.parametrize("f", [L.eigh, L.eigvalsh, L.svd, L.svdvals, L.eig, L.eigvals])
def test_matrices_that_are_not_finite_fail_the_call(f: Callable[..., Any]) -> None:
    """As LAPACK's iterations have no end for them; whatever the size."""
    model = dhlo.compile(export(f, [m(2, 3, 3)]))
    for bad in (math.nan, math.inf):
        x = m(3, 60, 60)
        x[1, 50, 2] = bad
        with pytest.raises(dhlo.ContractError, match=r"linalg\.\w+: a matrix isn't finite, or the algorithm didn't converge"):
            model(x)


def test_pivots_out_of_range_fail_the_call() -> None:
    x, y = m(4, 4), torch.randn(4, 2)
    solve = dhlo.compile(export(lambda x, p, y: L.ldl_solve(x, p, y), [x, torch.arange(1, 5).int(), y]))
    unpack = dhlo.compile(export(lambda x, p: torch.lu_unpack(x, p), [x, torch.arange(1, 5).int()]))
    for bad in ([1, 2, 3, 9], [0, 1, 1, 1], [1, 1, -7, -7]):
        pivots = torch.tensor(bad, dtype=torch.int32)
        with pytest.raises(dhlo.ContractError, match="a pivot names no row"):
            solve(x, pivots, y)
        with pytest.raises(dhlo.ContractError, match="out of range"):
            unpack(x, pivots)


def test_conditions_by_norms_of_fixed_sizes() -> None:
    for x in (m(2, 3, 3), torch.ones(2, 3, 3), torch.zeros(2, 0, 0)):
        model = dhlo.compile(torch.export.export(_Conditions(), (x,)))
        torch.testing.assert_close(model(x), _Conditions()(x), rtol=1e-4, atol=1e-5)


class _Conditions(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return L.cond(x, 1), L.cond(x, -math.inf)


def test_bags_without_a_last_offset_fail_the_call() -> None:
    f = lambda table, index, offsets: torch.nn.functional.embedding_bag(index, table, offsets, include_last_offset=True)
    model = dhlo.compile(export(f, [torch.randn(5, 3), torch.arange(4), torch.tensor([0, 2, 4])]))
    with pytest.raises(dhlo.ContractError):
        model(torch.randn(5, 3), torch.arange(4), torch.arange(0))
