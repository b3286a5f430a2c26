"""Determinants, inverses, systems of equations and Cholesky factors, at several sizes from one binary."""

from __future__ import annotations

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
    "nothing": (lambda x: (L.det(x), L.inv(x), L.slogdet(x)), [[m(3, 0, 0)]]),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    compiled(CASES[name][0], *CASES[name][1])


def test_singular_matrices_fail_the_call() -> None:
    model = dhlo.compile(export(L.inv, [m(3, 3)]))
    with pytest.raises(dhlo.ContractError, match=r"linalg\.inv: a matrix is singular"):
        model(torch.ones(4, 4))
    factor = dhlo.compile(export(L.cholesky, [positive(3, 3)]))
    with pytest.raises(dhlo.ContractError, match=r"linalg\.cholesky: a matrix is singular, or not positive definite"):
        factor(-torch.eye(4))
