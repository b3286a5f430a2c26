"""Lookups whose indices lie in a line along the vectors, as windows do: elements are loaded side by side, or by their step."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.export import Dim, export

import dhlo
from tests.calls import Call
from tests.test_memory_bounds import guarded

A: Any = Dim.AUTO
SIZES = (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1025)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point:
        x = torch.randn(shape).to(dtype)
        x.view(-1)[::37] = torch.nan
        return x
    return torch.randint(0, 2 if dtype is torch.bool else 120, shape).to(dtype)


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int16, torch.uint8, torch.bool)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("size", "step"), [(1, 1), (5, 2), (16, 16), (17, 3), (40, 7), (64, 1), (100, 41)])
def test_windows(dtype: torch.dtype, size: int, step: int) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.unfold(-1, size, step)
        return y.clone(), y.transpose(-1, -2).clone(), x.unfold(0, 2, 1).clone()

    model = dhlo.compile(export(Call(f), (numbers(3, 300, dtype=dtype),), dynamic_shapes=(({0: A, 1: A},),)))
    for rows, columns in ((3, 2 * size + step + 1), (5, 101 + 2 * size), (3, 4 * step + 2 * size - 1), (4, 1201)):
        x = guarded(numbers(rows, columns, dtype=dtype))
        torch.testing.assert_close(model(x), f(x), rtol=0, atol=0, equal_nan=True)


def test_lines_of_all_steps() -> None:
    """Places that rise and fall by any step, with offsets that depend on rows, times what depends on neither."""

    def f(x: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, n, m = x.shape[0], x.shape[1], steps.shape[0]
        lanes, up = torch.arange(m), torch.arange(rows)
        places = [
            lanes + (n - m),
            n - 1 - lanes,
            torch.arange(0, 2 * m, 2),
            torch.arange(n - 1, n - 1 - 5 * m, -5),
            torch.arange(0, 7 * m, 7) - lanes - lanes,
        ]
        line = [x.index_select(1, p) for p in places]
        return (
            *line,
            x.index_select(1, lanes + 2).t().clone(),
            x.as_strided((rows, m), (n - 1, 1), 1) * 1,
            x[0][up[:, None] + lanes],
        )

    example = (numbers(3, 400), torch.zeros(50))
    model = dhlo.compile(export(Call(f), example, dynamic_shapes=(({0: A, 1: A}, {0: A}),)))
    rng = random.Random(0)
    for m in [2, 15, 16, 17, 31, 32, 33, 47, 100, 1025]:
        x = guarded(numbers(rng.randint(2, 5), 7 * m + rng.randint(5, 20)))
        torch.testing.assert_close(model(x, torch.zeros(m)), f(x, torch.zeros(m)), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("falls", [False, True])
def test_a_line_that_leaves_its_dim_fails_the_call(falls: bool) -> None:
    def f(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        i = torch.arange(like.shape[0])
        return x.index_select(0, 40 - i if falls else i + 3) * 2

    model = dhlo.compile(export(Call(f), (numbers(60), torch.zeros(20)), dynamic_shapes=(({0: A}, {0: A}),)))
    for n in (1, 2, 16, 33, 38):
        x = guarded(numbers(41))
        torch.testing.assert_close(model(x, torch.zeros(n)), f(x, torch.zeros(n)), rtol=0, atol=0, equal_nan=True)
    for n in (42, 45, 48, 100):
        x = guarded(numbers(41))
        with pytest.raises(dhlo.ContractError, match=r"index (-\d+|4[1-9]|[5-9]\d|10\d) is out of range for size 41"):
            model(x, torch.zeros(n))


@pytest.mark.parametrize("step", [1 << 59, 1 << 45, -1229782938247303441], ids=["sum", "plain", "back again"])
def test_steps_at_which_positions_wrap_are_no_line(step: int) -> None:
    """Of 16 lanes of the last one the first and the last are in range, and those between far away."""

    def f(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        i = torch.arange(like.shape[0]) * 1
        return x.index_select(0, torch.arange(0, like.shape[0] * step, step) + i * 0) if step > 0 else x[i * step + 2]

    model = dhlo.compile(export(Call(f), (numbers(60), torch.zeros(20)), dynamic_shapes=(({0: A}, {0: A}),)))
    x = guarded(numbers(41))
    torch.testing.assert_close(model(x, torch.zeros(1)), f(x, torch.zeros(1)), equal_nan=True)
    for n in (2, 8, 16, 17, 33):
        with pytest.raises((dhlo.ContractError, MemoryError)):
            model(x, torch.zeros(n))
