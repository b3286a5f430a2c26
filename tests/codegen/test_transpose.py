"""Copies whose memory runs along another dim than their results: permutations and reversals at every size."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.export import Dim, export

import dhlo


class Permutations(torch.nn.Module):
    """Every order of three dims, alone, in arithmetic, beside an operand that isn't turned, and backwards."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        out = []
        for perm in itertools.permutations(range(3)):
            y = x.permute(perm)
            out += [y.contiguous(), y * 2 + y.flip(2), y + torch.arange(y.shape[2]).to(x.dtype), y * y]
        return [*out, x.flip(0, 2).contiguous(), x.transpose(0, 2) + x.transpose(0, 2).flip(0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool], ids=str)
def test_permutations_and_reversals(dtype: torch.dtype) -> None:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(-3, 4, shape).to(dtype)

    dims = {d: Dim(f"n{d}", min=0, max=4096) for d in range(3)}
    module = Permutations() if dtype != torch.bool else _Bools()
    model = dhlo.compile(export(module, (draw(3, 4, 5),), dynamic_shapes=(dims,)))
    for shape in [(1, 1, 1), (2, 3, 17), (16, 1, 33), (31, 15, 2), (17, 16, 48), (5, 1100, 3), (1, 2, 1025), (0, 3, 4), (4, 3, 0)]:
        x = draw(*shape)
        for given in (x, draw(*reversed(shape)).permute(2, 1, 0)):
            for got, want in zip(model(given), module(given), strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=0)


class _Bools(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [op for perm in itertools.permutations(range(3)) for op in (x.permute(perm).contiguous(), ~x.permute(perm).flip(2))]
