"""Operators that write their results into arguments (`out=`), which take the results' shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.frontend.helpers import check


def new(x: torch.Tensor) -> Any:
    return torch.add(x, 1, out=torch.empty(0))


def read_afterwards(x: torch.Tensor) -> Any:
    y = torch.empty(0)
    torch.sum(x, 1, out=y)
    return y * 2


def several(x: torch.Tensor) -> Any:
    values, places = torch.empty(0), torch.empty(0, dtype=torch.int64)
    torch.sort(x, out=(values, places))
    return values, places + 1


def joined(x: torch.Tensor) -> Any:
    y = torch.empty(0)
    torch.cat([x, x], out=y)
    return torch.mm(y, x.T, out=torch.empty(0))


def same_shape(x: torch.Tensor) -> Any:
    y = torch.empty_like(x)
    torch.mul(x, 3, out=y)
    return y


def into_a_view(x: torch.Tensor) -> Any:
    y = torch.zeros(2, *x.shape)
    torch.mul(x, 3, out=y[0])
    return y


@pytest.mark.parametrize("f", [new, read_afterwards, several, joined, same_shape, into_a_view], ids=lambda f: f.__name__)
def test_results_are_those_of_pytorch(f: Any) -> None:
    check(f, *[(torch.randn(n, m),) for n, m in ((4, 5), (1, 1), (7, 3))])
