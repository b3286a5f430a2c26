"""NaNs of all kinds stay NaN where numbers are rounded to bf16, without instructions for it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import dhlo
from dhlo.ir.nans import with_plain_nans

TARGET = "x86-64-v3" if platform.machine() == "x86_64" else "aarch64"
ODD = [0x7F800001, 0x7FFFFFFF, 0x7FFF8000, -0x1, -0x7FFFFF, 0x7FC07FFF]
"""Bits of NaNs that adding half of bf16's last place makes numbers of."""


def odd_nans(*shape: int) -> torch.Tensor:
    """Numbers, of which every seventh is such a NaN."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).flatten()
    at = torch.arange(0, x.numel(), 7)
    x.view(torch.int32)[at] = torch.tensor(ODD, dtype=torch.int32).repeat(-(-len(at) // len(ODD)))[: len(at)]
    return x.reshape(shape)


def all_nans() -> torch.Tensor:
    """Every NaN of bf16, and both infinities."""
    return torch.tensor([*range(0x7F80, 0x8000), *range(-0x80, 0)], dtype=torch.int16).view(torch.bfloat16)


class Scaled(nn.Module):
    """Two convolutions (the second depthwise if so asked) of which each is scaled in f32, and rounded twice."""

    def __init__(self, depthwise: bool, scale: torch.Tensor) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 16, 1, bias=False).bfloat16()
        self.second = nn.Conv2d(16, 16, 3, padding=1, groups=16 if depthwise else 1, bias=False).bfloat16()
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in (self.first, self.second):
            x = (conv(x).float() * self.scale[:, None, None] + 1).bfloat16().relu()
        return x


class Wide(nn.Module):
    """A depthwise convolution of bf16 whose weights are f32."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x.float(), self.weight, groups=self.weight.shape[0]).bfloat16()


class Mixed(nn.Module):
    """Elementwise work of bf16 and f32 arguments, and a product of bf16."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        sums = x.float() + 1
        return [
            (sums * y).bfloat16(),
            torch.where(x > 0, sums, y).bfloat16(),
            torch.maximum(sums, y).bfloat16(),
            x * x,
            x[:, :64] @ w,
        ]


def compiled(model: nn.Module, args: tuple[Any, ...], dims: Any) -> Callable[..., Any]:
    return dhlo.compile(export(model.eval(), args, dynamic_shapes=dims), cache="", target=TARGET, winograd=False)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), rtol=2**-6, atol=2**-6, equal_nan=True)


IMAGES = ({0: Dim("b", max=64), 2: Dim("h", min=4, max=99), 3: Dim("w", min=4, max=99)},)


@pytest.mark.parametrize("depthwise", [False, True])
def test_of_images_and_scales(depthwise: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 16, 20).bfloat16()
    x.view(-1)[: 256 * 3 : 3] = all_nans()
    for scale in (torch.rand(16), odd_nans(16)):
        model = Scaled(depthwise, scale)
        ours = compiled(model, (x,), IMAGES)
        for image in (x, torch.randn(2, 4, 16, 20).bfloat16(), x[..., :9].contiguous()):
            same(ours(image), model(image))


def test_of_weights() -> None:
    model, x = Wide(odd_nans(16, 1, 3, 3)), torch.randn(2, 16, 9, 20).bfloat16()
    same(compiled(model, (x,), IMAGES)(x), model(x))


def test_of_arguments() -> None:
    rows = Dim("rows", max=99)
    x, y, w = all_nans().reshape(2, 128).repeat(3, 1), odd_nans(6, 128), torch.randn(64, 33).bfloat16()
    x[::2] = torch.randn(3, 128).bfloat16()
    model = Mixed()
    for got, want in zip(compiled(model, (x, y, w), ({0: rows}, {0: rows}, None))(x, y, w), model(x, y, w), strict=True):
        same(got, want)


def test_constants_lose_no_nan() -> None:
    x = odd_nans(50)
    y = with_plain_nans(x)
    assert torch.equal(x.isnan(), y.isnan()) and bool((y[y.isnan()].view(torch.int32) & 0xFFFF == 0).all())
    assert with_plain_nans(torch.ones(3)).equal(torch.ones(3))
