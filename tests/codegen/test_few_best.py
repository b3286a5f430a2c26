"""topk of lines of any length: ranked at once, behind a bound that the first elements give, or filtered and sorted by digits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim, export

import dhlo
from dhlo.codegen.families.sort.sort import PREFIX, SHORT

A: Any = Dim.AUTO
LENGTHS = (1, 2, 15, 16, 17, 33, 47, 48, 49, 64, SHORT, SHORT + 1, 257, 300, 1000, PREFIX - 1, PREFIX + 33, 3 * PREFIX + 5)


class Best(torch.nn.Module):
    def __init__(self, k: int, dim: int, largest: bool) -> None:
        super().__init__()
        self.k, self.dim, self.largest = k, dim, largest

    def forward(self, x):
        return torch.topk(x, self.k, self.dim, self.largest)


def lines(kind: str, rows: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    if kind == "random":
        return torch.randn(rows, n).to(dtype) if dtype.is_floating_point else torch.randint(-100, 100, (rows, n)).to(dtype)
    if kind == "rising":
        return torch.arange(rows * n).reshape(rows, n).to(dtype)
    if kind == "falling":
        return torch.arange(rows * n).flip(0).reshape(rows, n).to(dtype)
    if kind == "equal":
        return torch.full((rows, n), 3).to(dtype)
    if kind == "late":  # the best are behind what gives the bound
        return torch.cat([torch.zeros(rows, n - n // 3), torch.ones(rows, n // 3)], 1).to(dtype)
    if kind == "ends":
        least, most = (float("-inf"), float("nan")) if dtype.is_floating_point else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        x = torch.full((rows, n), least, dtype=dtype)
        x[1::2] = most
        x[:, ::7] = 0
        return x
    raise AssertionError(kind)


def expected(x: torch.Tensor, k: int, dim: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Of equal elements the first, by a stable sort."""
    values, places = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dim", [1, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.int8], ids=str)
@pytest.mark.parametrize(("k", "largest"), [(1, True), (1, False), (5, True), (8, False), (16, True), (17, False), (50, True)])
def test_few_of_lines_of_any_length(k: int, largest: bool, dtype: torch.dtype, dim: int) -> None:
    torch.manual_seed(0)
    sizes = {1 - dim: A, dim: Dim("n", min=k)}
    example = torch.zeros(70, 70).to(dtype)
    model = dhlo.compile(export(Best(k, dim, largest), (example,), dynamic_shapes=(sizes,)))
    for n in LENGTHS:
        for kind in ("random", "rising", "falling", "equal", "late", "ends") if n >= k else ():
            if dtype is torch.int8 and kind in ("rising", "falling"):
                continue
            x = lines(kind, 3, n, dtype)
            x = x if dim == 1 else x.t().contiguous()
            values, places = model(x)
            torch.testing.assert_close((values, places), expected(x, k, dim, largest), rtol=0, atol=0, equal_nan=True)


def test_static_lines() -> None:
    torch.manual_seed(0)
    for n, k in ((40, 3), (49, 16), (129, 1), (1000, 5), (200, 200)):
        model = dhlo.compile(export(Best(k, 1, True), (torch.zeros(4, n),)))
        for kind in ("random", "equal", "ends"):
            x = lines(kind, 4, n, torch.float32)
            torch.testing.assert_close(tuple(model(x)), expected(x, k, 1, True), rtol=0, atol=0, equal_nan=True)


def test_a_number_of_the_call() -> None:
    class Some(torch.nn.Module):
        def forward(self, x, like):
            return torch.topk(x, like.shape[0], 1)

    example, sizes = (torch.zeros(4, 300), torch.zeros(9)), ({0: A, 1: A}, {0: A})
    model = dhlo.compile(export(Some(), example, dynamic_shapes=sizes, prefer_deferred_runtime_asserts_over_guards=True))
    torch.manual_seed(0)
    for n, k in ((300, 2), (300, 16), (300, 17), (300, 299), (40, 7), (129, 8), (9000, 5), (9000, 600)):
        for kind in ("random", "equal", "ends"):
            x = lines(kind, 2, n, torch.float32)
            torch.testing.assert_close(tuple(model(x, torch.zeros(k))), expected(x, k, 1, True), rtol=0, atol=0, equal_nan=True)
