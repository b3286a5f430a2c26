"""Products with one column, or of one row with the rows of a matrix."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.export import Dim, export

import dhlo
from tests.calls import Call

A: Any = Dim.AUTO
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 3e-3}
SIZES = [1, 2, 3, 15, 16, 17, 31, 33, 64, 100, 1000]


def products(x, v, batch, column, t):
    """x [M, K], v [K], batch [B, M, K], column [B, K, 1], t [K, M]."""
    row = v[None]
    return (
        x @ v,
        torch.nn.functional.linear(row, x),
        batch @ column,
        batch @ v,
        t.T @ v[:, None] + 1,
        torch.relu(x * 2 + 1) @ v[:, None],
        torch.bmm(column.mT, batch.mT),
        row @ v[:, None],
    )


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_against_double_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)

    def make(m: int, k: int, b: int) -> tuple[torch.Tensor, ...]:
        shapes = [(m, k), (k,), (b, m, k), (b, k, 1), (k, m)]
        return tuple(torch.randn(s).to(dtype) for s in shapes)

    dims: Any = (({0: A, 1: A}, {0: A}, {0: A, 1: A, 2: A}, {0: A, 1: A}, {0: A, 1: A}),)
    model = dhlo.compile(export(Call(products), make(6, 5, 3), dynamic_shapes=dims))
    rng = random.Random(0)
    for m, k, b in [
        (2, 1000, 3),
        (1000, 2, 2),
        (3, 5000, 2),
        *((rng.choice(SIZES), rng.choice(SIZES), rng.randint(1, 3)) for _ in range(25)),
    ]:
        args = make(m, k, b)
        for got, want in zip(model(*args), products(*(x.double() for x in args)), strict=True):
            tolerance = TOLERANCES[dtype] * max(1.0, k**0.5)
            torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


def test_of_nothing() -> None:
    model = dhlo.compile(
        export(Call(lambda x, v: x @ v), (torch.randn(6, 5), torch.randn(5)), dynamic_shapes=(({0: A, 1: A}, {0: A}),))
    )
    assert model(torch.randn(3, 0), torch.randn(0)).tolist() == [0.0] * 3
    assert model(torch.randn(0, 4), torch.randn(4)).shape == (0,)
    assert model(torch.tensor([[1.0, torch.inf]]), torch.tensor([1.0, 0.0])).isnan().all()


@pytest.mark.parametrize("weights", (None, "int8"))
def test_one_feature(weights: str | None) -> None:
    """Of a weight; one that is quantised stays in its codes."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1), torch.nn.Sigmoid())
    model = dhlo.compile(export(module, (torch.randn(4, 64),), dynamic_shapes=({0: A},)), weights=weights)
    with torch.no_grad():
        for n in (1, 2, 17, 300):
            x = torch.randn(n, 64)
            torch.testing.assert_close(
                model(x), module(x), rtol=1e-5 if weights is None else 2e-2, atol=1e-5 if weights is None else 2e-2
            )
