"""Memory of large outputs is kept for the next call, also when smaller calls come in between, and doesn't grow."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim, export

import dhlo


class AddOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_a_small_call_leaves_the_large_block() -> None:
    model = dhlo.compile(export(AddOne(), (torch.randn(4),), dynamic_shapes=({0: Dim("n")},)))
    large, small = torch.randn(1 << 20), torch.randn(1 << 14)
    first = model(large).data_ptr()
    for _ in range(5):
        assert model(small).data_ptr() != first
        assert model(large).data_ptr() == first
    kept = model(large)
    assert kept.data_ptr() == first and model(large).data_ptr() != first  # not while a tensor has it
    torch.testing.assert_close(kept, large + 1)
