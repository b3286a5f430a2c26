"""Heads of detectors: joins of columns of images whose channels are moved to the end, at many sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim, export

import dhlo
from tests.calls import Call


def columns(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, 2, c // 2, h, w).permute(0, 1, 3, 4, 2)


def places(x: Tensor) -> Tensor:
    h, w = x.shape[2:]
    return torch.stack(torch.meshgrid(torch.arange(w), torch.arange(h), indexing="xy"), -1).float()


def written(x: Tensor) -> Tensor:
    y = columns(x).contiguous()
    y[..., :2] = y[..., :2].sigmoid() * 2
    y[..., 4:] = y[..., 4:].exp()
    return y


HEADS: dict[str, Callable[[Tensor], Any]] = {
    "yolo": lambda x: torch.cat(
        [columns(x)[..., :2].sigmoid() * 2 + places(x), columns(x)[..., 2:4].exp(), columns(x)[..., 4:].sigmoid()], -1
    ).flatten(1, 3),
    "in order": lambda x: torch.cat([columns(x)[..., 4:], columns(x)[..., :4] * 2], -1),
    "every other": lambda x: torch.cat([columns(x)[..., ::2], columns(x)[..., 1::2].relu()], -1),
    "written": lambda x: written(x).flatten(1, 3),
    "beside numbers": lambda x: torch.cat([F.pad(x.permute(0, 2, 3, 1), (1, 2)), x.permute(0, 2, 3, 1).abs()], -1),
    "rows and columns": lambda x: torch.cat([x.permute(0, 3, 2, 1) + 1, x.permute(0, 3, 2, 1)[..., :3]], -1).flatten(1, 2),
    "two ways": lambda x: torch.cat([x.permute(0, 2, 3, 1), x.permute(0, 2, 3, 1).transpose(1, 2).transpose(1, 2) * 2], -1),
    "read again": lambda x: (torch.cat([columns(x).sigmoid(), columns(x)], -1), columns(x).sigmoid()),
    "weighed": lambda x: torch.cat([columns(x) * torch.arange(11.0), columns(x) * torch.arange(float(x.shape[3]))[:, None]], -1),
    "integers": lambda x: torch.cat([columns(x)[..., :5].to(torch.int32), columns(x)[..., 5:].to(torch.int32) * 2], -1),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(name: str) -> None:
    torch.manual_seed(0)
    f = HEADS[name]
    dims = {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}
    model = dhlo.compile(export(Call(f), (torch.randn(2, 22, 6, 7),), dynamic_shapes=((dims,),)))
    for b, h, w in ((2, 6, 7), (1, 1, 1), (0, 3, 3), (1, 17, 16), (2, 5, 33), (1, 40, 15), (3, 2, 64), (1, 3, 0)):
        x = torch.randn(b, 22, h, w)
        if x.numel():
            x.view(-1)[1] = torch.nan if name != "integers" else 0
        try:
            y = model(x)
        except dhlo.ContractError:
            assert (b, h, w) != (2, 6, 7)
            continue
        torch.testing.assert_close(y, f(x), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_chains_of_any_length() -> None:
    """Before what is joined."""

    def f(x: Tensor) -> Tensor:
        y = t = x.permute(0, 2, 3, 1)
        for i in range(400):
            y = y * 1.0001 if i % 2 else y - 0.002
        return torch.cat([y, t], -1)

    x = torch.randn(2, 18, 6, 7)
    model = dhlo.compile(export(Call(f), (x,), dynamic_shapes=(({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},),)))
    torch.testing.assert_close(model(x), f(x), rtol=1e-5, atol=1e-5)
