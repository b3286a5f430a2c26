"""Depthwise convolutions that take in the 1 x 1 convolution before them, beside PyTorch, at image sizes of every kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import dhlo

SIZES = [(1, 1, 1), (1, 7, 7), (2, 14, 14), (1, 15, 13), (3, 9, 33), (1, 56, 57), (1, 2, 130), (2, 40, 3)]


class Chain(nn.Module):
    def __init__(self, channels: int, hidden: int, k: int, stride: int = 1, dilation: int = 1, act: Any = nn.ReLU6) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(channels, hidden, 1), act())
        padding = dilation * (k - 1) // 2
        self.mix = nn.Sequential(nn.Conv2d(hidden, hidden, k, stride, padding, dilation, groups=hidden), act())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.mix(self.expand(x))
        return y


def compiled(model: nn.Module, channels: int, dtype: torch.dtype = torch.float32, least: int = 1) -> Any:
    """`least`: sizes below give one row, which export makes a case of its own."""
    dims = {0: Dim("b", max=64), 2: Dim("h", min=least, max=512), 3: Dim("w", min=least, max=512)}
    exported = torch.export.export(model, (torch.randn(2, channels, 20, 24, dtype=dtype),), dynamic_shapes=(dims,))
    return dhlo.compile(exported, cache="")


def chains(model: Any) -> int:
    return sum(g["ops"].count("dhlo.conv") == 2 for g in model.metadata["groups"])


@pytest.mark.parametrize(
    "channels,hidden,k,stride,dilation",
    [(16, 96, 3, 2, 1), (24, 72, 5, 1, 1), (8, 33, 3, 1, 1), (3, 5, 3, 1, 2), (17, 64, 5, 2, 1), (40, 31, 7, 1, 1), (64, 96, 1, 1, 1)],
)
def test_matches_pytorch_at_all_sizes(channels: int, hidden: int, k: int, stride: int, dilation: int) -> None:
    torch.manual_seed(0)
    model = Chain(channels, hidden, k, stride, dilation).eval()
    least = 2 * stride - 1
    ours = compiled(model, channels, least=least)
    wide = Chain(channels, hidden, k, stride, dilation).eval()
    wide.load_state_dict(model.state_dict())
    wide.double()
    for b, h, w in (s for s in SIZES if min(s[1:]) >= least):
        x = torch.randn(b, channels, h, w)
        want = wide(x.double())
        got = ours(x)
        assert got.shape == want.shape
        assert (got - want).abs().max() <= 5e-6 * want.abs().max()
