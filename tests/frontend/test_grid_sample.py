"""Sampling images at computed places, of few channels and of many, which are sampled side by side."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim, export

import dhlo

A: Any = Dim.AUTO


class Sample(torch.nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, grid):
        return F.grid_sample(x, grid, **self.how)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("channels", (1, 3, 8, 17, 32))
@pytest.mark.parametrize("padding", ("zeros", "border", "reflection"))
def test_bilinear(channels: int, padding: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rng = random.Random(channels)
    module = Sample(padding_mode=padding, align_corners=channels % 2 == 0)
    example = (torch.rand(2, channels, 9, 7, dtype=dtype), torch.rand(2, 5, 6, 2, dtype=dtype))
    model = dhlo.compile(export(module, example, dynamic_shapes=({0: A, 2: A, 3: A}, {0: A, 1: A, 2: A})))
    for k in range(12):
        batch, h, w, rows, columns = (rng.randint(2, 20) for _ in range(5))
        x = torch.rand(batch % 3 + 1, channels, h, w, dtype=dtype)
        grid = torch.rand(batch % 3 + 1, rows, columns, 2, dtype=dtype) * 3 - 1.5
        for value in (math.nan, math.inf, -math.inf, 1.0, -1.0) if k % 2 else ():
            grid.view(-1)[rng.randrange(grid.numel())] = value
        x[0, 0, 0, 0] = math.nan if k % 3 == 0 else 0.5
        torch.testing.assert_close(model(x, grid), module(x, grid), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_narrow_floats(dtype: torch.dtype) -> None:
    module = Sample(align_corners=False)
    x, grid = torch.rand(2, 16, 9, 7).to(dtype), (torch.rand(2, 5, 6, 2) * 2 - 1).to(dtype)
    model = dhlo.compile(export(module, (x, grid), dynamic_shapes=({2: A, 3: A}, {1: A, 2: A})))
    want = F.grid_sample(x.float(), grid.float(), align_corners=False).to(dtype)
    torch.testing.assert_close(model(x, grid), want, rtol=1e-2, atol=1e-2)


def test_no_places() -> None:
    module = Sample(align_corners=False)
    example = (torch.rand(2, 16, 9, 7), torch.rand(2, 5, 6, 2))
    model = dhlo.compile(export(module, example, dynamic_shapes=({2: A, 3: A}, {1: A, 2: A})))
    assert model(torch.rand(2, 16, 3, 3), torch.rand(2, 0, 6, 2)).shape == (2, 16, 0, 6)
