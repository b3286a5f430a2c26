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


@pytest.mark.sampled(3)
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


def test_any_number_of_channels() -> None:
    """Planes of one column, places that are computed, numbers that aren't finite beside those that are read."""

    class Moved(torch.nn.Module):
        def forward(self, x, grid, flow):
            return F.grid_sample(x, grid + flow, align_corners=False)

    torch.manual_seed(0)
    module = Moved()
    example = (torch.rand(2, 5, 9, 7), torch.rand(2, 5, 6, 2), torch.rand(5, 6, 2))
    shapes = ({0: A, 1: A, 2: A, 3: A}, {0: A, 1: A, 2: A}, {0: A, 1: A})
    model = dhlo.compile(export(module, example, dynamic_shapes=shapes))
    for channels, h, w, rows, columns in (
        *((3, 5, n, 2, 17) for n in (1, 2, 3, 15, 16, 17)),
        *((2, n, 4, 3, 33) for n in (1, 2, 3, 16)),
        *((c, 4, 5, 3, 7) for c in (1, 2, 40)),
        *((2, 4, 5, 2, n) for n in (1, 2, 15, 16, 17, 257, 600)),
    ):
        x, grid = torch.rand(2, channels, h, w), torch.rand(2, rows, columns, 2) * 3 - 1.5
        x[:, :, :, -1], x[0, 0, 0] = math.inf, math.nan
        flow = torch.rand(rows, columns, 2) / 8
        torch.testing.assert_close(model(x, grid, flow), module(x, grid, flow), rtol=1e-4, atol=1e-5, equal_nan=True)


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
