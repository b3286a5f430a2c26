"""Reductions of few long items, which are split into parts: sums, maxima and products over rows, columns and everything."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export

import dhlo
from dhlo import _runtime


class Reductions(torch.nn.Module):
    """Several in one pass, with arithmetic before and after, over the last dims, the first ones and all."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2 + 1
        out = [y.sum(), x.amax(), (y.sum((0, 1)) + 1), x.amin((0, 1)), y.sum((1, 2)), x.amax((1, 2)), y.sum(1), x.amax(0), x.sum(2)]
        return [*out, (y * y).sum((0, 2)), (x > 0).sum(), (x != 0).any(), (x == x).all((0, 1))]


def _inputs(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(-1, 2, shape).to(dtype)  # so small that sums of f32 stay exact


def _split(model: dhlo.CompiledModel, x: torch.Tensor) -> bool:
    """Whether a call reduces parts."""
    session = _runtime.Session(model.native, profile=True)
    session([x])
    return any(name.startswith("reduce_partial") and count for name, count, _ in session.profile)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32], ids=str)
def test_parts_make_the_whole(dtype: torch.dtype) -> None:
    dims = {d: Dim(f"n{d}", min=1, max=1 << 20) for d in range(3)}
    model = dhlo.compile(export(Reductions(), (_inputs(dtype, (3, 4, 5)),), dynamic_shapes=(dims,)))
    assert not _split(model, _inputs(dtype, (3, 4, 5))) and _split(model, _inputs(dtype, (2, 3, 100_003)))
    for shape in [(1, 1, 1), (2, 3, 100_003), (100_003, 1, 3), (3, 70_001, 2), (257, 33, 65), (1, 1, 1_000_000), (17, 1, 20_000)]:
        x = _inputs(dtype, shape)
        for got, want in zip(model(x), Reductions()(x), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_not_a_number_in_any_part_shows() -> None:
    dims = {d: Dim(f"n{d}", min=1, max=1 << 20) for d in range(3)}
    model = dhlo.compile(export(Reductions(), (torch.randn(3, 4, 5),), dynamic_shapes=(dims,)))
    for at in (0, 65_536, 299_999):
        x = torch.zeros(300_000)
        x[at] = float("nan")
        for got, want in zip(model(x.view(1, 3, -1)), Reductions()(x.view(1, 3, -1)), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
