"""Interpolation of images of bytes, to the bit as PyTorch computes it."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim, export

import dhlo
from dhlo.errors import CompileError

A: Any = Dim.AUTO


class Resize(torch.nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, like):
        return F.interpolate(x, size=like.shape, **self.how)


class Scaled(Resize):
    def forward(self, x):
        return F.interpolate(x, **self.how)


def image(*shape: int, extreme: bool = False) -> torch.Tensor:
    x = torch.randint(0, 256, shape, dtype=torch.uint8)
    return (x > 127).to(torch.uint8) * 255 if extreme else x


@pytest.mark.parametrize(("mode", "antialias", "corners"), product(("bilinear", "bicubic"), (False, True), (False, True)))
def test_sizes_of_the_call(mode: str, antialias: bool, corners: bool) -> None:
    torch.manual_seed(0)
    rng, module = random.Random(0), Resize(mode=mode, antialias=antialias, align_corners=corners)
    example = (image(2, 3, 40, 36), torch.zeros(20, 50))
    model = dhlo.compile(export(module, example, dynamic_shapes=({0: A, 2: A, 3: A}, {0: A, 1: A})))
    for k in range(16):
        h, w = rng.randint(1, 50), rng.randint(1, 50)
        to = [(rng.randint(1, 70), rng.randint(1, 70)), (2 * h, 3 * w), (h // 2 + 1, w // 4 + 1), (h, 1)][k % 4]
        args = (image(k % 3 + 1, 3, h, w, extreme=k % 5 == 0), torch.zeros(to))
        torch.testing.assert_close(model(*args), module(*args), rtol=0, atol=0)


@pytest.mark.parametrize(
    "how", [{"scale_factor": 1.7, "mode": "bilinear"}, {"scale_factor": 0.4, "mode": "bicubic", "antialias": True}]
)
def test_factors(how: Any) -> None:
    module = Scaled(**how)
    model = dhlo.compile(export(module, (image(2, 7, 40, 36),), dynamic_shapes=({0: A, 2: A, 3: A},)))
    for shape in ((2, 7, 40, 36), (1, 7, 9, 31), (3, 7, 33, 5)):
        x = image(*shape)
        torch.testing.assert_close(model(x), module(x), rtol=0, atol=0)


def test_half_of_a_size() -> None:
    """Which nothing would be left of at size 1."""

    class Half(torch.nn.Module):
        def forward(self, x):
            return F.interpolate(x, size=(x.shape[2] // 2, x.shape[3] // 2), mode="bilinear", antialias=True)

    for x in (torch.rand(2, 3, 128, 120), image(2, 3, 128, 120)):
        model = dhlo.compile(export(Half(), (x,), dynamic_shapes=({0: A, 2: A, 3: A},)))
        for h, w in ((128, 120), (7, 33), (5, 4)):
            part = x[:, :, :h, :w]
            torch.testing.assert_close(model(part), Half()(part), rtol=1e-5, atol=1e-6)


def test_other_integers_are_refused() -> None:
    exported = export(Scaled(scale_factor=2, mode="bilinear"), (image(1, 3, 4, 5).float(),), dynamic_shapes=({2: A, 3: A},))
    (node,) = (n for n in exported.graph.nodes if n.name == "x")
    node.meta["val"] = node.meta["val"].to(torch.int32)
    with pytest.raises(CompileError, match="interpolation of i32"):
        dhlo.compile(exported)
