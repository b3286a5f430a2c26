"""Masks made of comparisons of positions, at random: whatever becomes causal, results are PyTorch's."""

from __future__ import annotations

import operator
import random

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim, export

import dhlo

SIZES = ((1, 2, 0), (2, 5, 4), (1, 40, 0), (2, 33, 70), (1, 100, 31), (3, 2, 200))  # batch, queries, keys before them


class Attention(torch.nn.Module):
    """Under a mask that a seed makes: some comparisons of keys' and queries' positions, perhaps of padding, too."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, q: torch.Tensor, k: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        rng, n, m = random.Random(self.seed), q.shape[2], k.shape[2]
        distances = random.Random(-self.seed)
        mask = torch.ones(1, 1, dtype=torch.bool)
        for _ in range(rng.choice((1, 1, 2, 3))):
            queries = torch.arange(n)[:, None] + (m - n if rng.random() < 0.7 else 0) + rng.choice((0, 0, 0, 1, -2, 3))
            keys = torch.arange(m)[None] + rng.choice((0, 0, 0, 1, -1))
            sides = [queries[:1] if rng.random() < 0.15 else queries, keys]
            rng.shuffle(sides)
            if distances.random() < 0.4:
                sides = [sides[0] - sides[1], torch.tensor(distances.choice((0, 0, 1, -2)))]
            mask = mask & rng.choice((operator.le, operator.lt, operator.ge, operator.gt))(*sides)
        if rng.random() < 0.4:
            mask = mask & real[:, None, None]
        y = F.scaled_dot_product_attention(q, k, k, mask)
        return y[:, :, -1:] if rng.random() < 0.3 else y


@pytest.mark.parametrize("seed", [0, 4, 10, *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, 160))])
def test_masks(seed: int) -> None:
    module = Attention(seed).eval()
    args = torch.randn(2, 3, 5, 16), torch.randn(2, 3, 9, 16), torch.ones(2, 9, dtype=torch.bool)
    sizes = {0: Dim.AUTO, 2: Dim.AUTO}
    compiled = dhlo.compile(export(module, args, dynamic_shapes=(sizes, sizes, {0: Dim.AUTO, 1: Dim.AUTO})))
    for batch, n, past in SIZES:
        q, k, real = torch.randn(batch, 3, n, 16), torch.randn(batch, 3, n + past, 16), torch.rand(batch, n + past) < 0.8
        torch.testing.assert_close(compiled(q, k, real), module(q, k, real), rtol=1e-4, atol=1e-5)
