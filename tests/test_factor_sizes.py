"""Factorisations and systems at sizes about those of the pieces that their rows are computed in."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim, export

import dhlo

SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 25, 31, 33, 63, 64, 65, 72, 73, 97, 130]


class Calls(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Any:
        return self.fn(*args)


def compiled(fn: Callable[..., Any], *ranks: tuple[str, ...]) -> dhlo.CompiledModel:
    """The function for f64 matrices whose sizes are given by name, 5 and more in the example."""
    dims = {name: Dim(name, max=1 << 12) for name in dict.fromkeys(n for rank in ranks for n in rank)}
    sizes = {name: 5 + i for i, name in enumerate(dims)}
    args = tuple(torch.eye(sizes[r[-2]], sizes[r[-1]]).double().expand(*(sizes[n] for n in r)).contiguous() for r in ranks)
    shapes = tuple({i: dims[n] for i, n in enumerate(rank)} for rank in ranks)
    return dhlo.compile(export(Calls(fn), args, dynamic_shapes=(shapes,)))


def in_any_order(seed: int) -> list[int]:
    torch.manual_seed(seed)
    return random.Random(seed).sample(SIZES, len(SIZES))


def drawn(*shape: int) -> Tensor:
    """Matrices that need pivots and have inverses."""
    return torch.randn(shape, dtype=torch.float64) + 3 * torch.eye(*shape[-2:], dtype=torch.float64).flip(-1)


def test_determinants_and_inverses() -> None:
    model = compiled(lambda x: (torch.linalg.det(x), *torch.linalg.slogdet(x), torch.linalg.inv(x)), ("b", "n", "n"))
    for n in in_any_order(0):
        x = drawn(3, n, n)
        det, sign, log, inverse = model(x)
        torch.testing.assert_close(det, torch.linalg.det(x), rtol=1e-9, atol=0)
        torch.testing.assert_close((sign, log), tuple(torch.linalg.slogdet(x)), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(inverse @ x, torch.eye(n, dtype=torch.float64).expand(3, n, n), rtol=0, atol=1e-8)


@pytest.mark.parametrize("size", [1e-300, 1e-140, 1e-20, 1e20, 1e140, 1e300])
def test_logarithms_of_determinants_of_any_size(size: float) -> None:
    model = compiled(lambda x: tuple(torch.linalg.slogdet(x)), ("b", "n", "n"))
    for n in (1, 2, 9, 40):
        x = drawn(4, n, n) * torch.tensor([size, 1 / size, 1.0, 0.0], dtype=torch.float64)[:, None, None]
        turns = torch.tensor([size**0.4, size**-0.4] * n, dtype=torch.float64)[:n, None]
        rows = turns * drawn(4, n, n)
        for y in (x, rows):
            torch.testing.assert_close(model(y), tuple(torch.linalg.slogdet(y)), rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("upper", [False, True])
def test_triangular_systems_of_few_and_many_columns(upper: bool) -> None:
    model = compiled(lambda a, b: torch.linalg.solve_triangular(a, b, upper=upper), ("b", "n", "n"), ("b", "n", "m"))
    for n in in_any_order(1):
        a = drawn(2, n, n) * 0.1 + 3 * torch.eye(n, dtype=torch.float64)
        a = a.triu() if upper else a.tril()
        for m in random.Random(n).sample(SIZES, 6):
            b = torch.randn(2, n, m, dtype=torch.float64)
            want = torch.linalg.solve_triangular(a, b, upper=upper)
            torch.testing.assert_close(model(a, b), want, rtol=1e-8, atol=1e-8)


def test_systems_and_cholesky_factors() -> None:
    model = compiled(lambda a, b: (torch.linalg.cholesky(a), torch.linalg.solve(a, b)), ("b", "n", "n"), ("b", "n", "m"))
    for n in in_any_order(2):
        x, b = drawn(2, n, n), torch.randn(2, n, 3, dtype=torch.float64)
        a = x @ x.mT + n * torch.eye(n, dtype=torch.float64)
        factor, solved = model(a, b)
        torch.testing.assert_close(factor, torch.linalg.cholesky(a), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(solved, torch.linalg.solve(a, b), rtol=1e-8, atol=1e-8)
