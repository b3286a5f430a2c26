"""Loops and reductions that go through trailing dims as one, where nothing asks for a place in one of them; and others."""

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
from tests.test_memory_bounds import guarded

A: Any = Dim.AUTO


def column(s: Tensor) -> Tensor:
    return s[:, None, None]


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "by channel": lambda x, s: x * column(s) + column(s.abs()),
    "residual": lambda x, s: (x * column(s) + x).relu(),
    "shuffled": lambda x, s: F.channel_shuffle(x, 2) * 2,
    "joined": lambda x, s: torch.cat([x * column(s), x, x + 1], 1) * 3,
    "joined images": lambda x, s: torch.cat([x, x * column(s)], 0),
    "joined rows": lambda x, s: torch.cat([x, x * column(s)], 2) + 1,
    "reversed channels": lambda x, s: x.flip(1) + x,
    "reversed columns": lambda x, s: x.flip(-1) + x,
    "reversed rows": lambda x, s: x.flip(-2) * column(s),
    "channels": lambda x, s: x[:, 1:3] * 2,
    "rows": lambda x, s: x[:, :, 1:] * column(s),
    "every other": lambda x, s: x[:, ::2] + x[:, 1::2],
    "looked up": lambda x, s: x[:, torch.tensor([2, 0, 3, 3, 1])] * 2,
    "looked up rows": lambda x, s: x.index_select(2, torch.arange(x.shape[2]).flip(0)) + x,
    "transposed": lambda x, s: (x[..., None] + x[..., None, :]).transpose(0, 1) * 2,
    "images and channels": lambda x, s: x.transpose(0, 1) * s[:, None, None, None],
    "one image": lambda x, s: x[:1] + x,
    "one row": lambda x, s: x[:, :, :1] + x,
    "one column": lambda x, s: x[..., :1] * x,
    "one element": lambda x, s: x[..., :1, :1] - x,
    "columns": lambda x, s: x * torch.arange(x.shape[-1], dtype=torch.float32),
    "rows' numbers": lambda x, s: x + torch.arange(x.shape[-2])[:, None],
    "places": lambda x, s: torch.arange(x.shape[-1]).expand(x.shape) + torch.zeros(x.shape, dtype=torch.int64),
    "channels' numbers": lambda x, s: x.flip(0) + column(torch.arange(x.shape[1])),
    "flat": lambda x, s: (x.flatten(2) * s[:, None]).unflatten(2, (x.shape[2], x.shape[3])).flip(0),
    "flat, backwards": lambda x, s: (
        torch.cat([x, x * column(s)], 2).flatten(2).flip(2).unflatten(2, (2 * x.shape[2], x.shape[3])) + 1
    ),
    "all flat, backwards": lambda x, s: torch.cat([x, -x], 0).flatten().flip(0).reshape(2 * x.shape[0], *x.shape[1:]) * column(s),
    "folded": lambda x, s: (x * column(s)).flatten(0, 1).flip(0) + 1,
    "padded": lambda x, s: F.pad(x, (0, 0, 0, 0, 1, 2)) + 1,
    "padded columns": lambda x, s: F.pad(x, (1, 2, 3, 1), value=2.0) + 1,
    "tril": lambda x, s: x.tril() * column(s),
    "several": lambda x, s: (x * column(s), x.flip(0) - column(s), (x > column(s)).flip(1)),
    "wide": lambda x, s: (x.bfloat16() * column(s).bfloat16(), (x * column(s)).to(torch.int64)),
    "mean of channels": lambda x, s: x.mean(1),
    "largest of channels": lambda x, s: x.amax(1, keepdim=True) + column(s),
    "softmax of channels": lambda x, s: x.softmax(1),
    "log of sums of channels": lambda x, s: (x * column(s)).logsumexp(1),
    "normalised channels": lambda x, s: (x - x.mean(1, keepdim=True)) * (x.var(1, keepdim=True) + 0.1).rsqrt() * column(s),
    "several of channels": lambda x, s: (x.mean(1), (x * x).mean(1), x.mean(1).exp() + x.amin(1)),
    "sums beside places": lambda x, s: x.mean(1) * torch.arange(x.shape[-1], dtype=torch.float32),
    "sums of reversed columns": lambda x, s: x.flip(-1).mean(1) + x[:, 1:3].mean(1),
    "sums of transposed images": lambda x, s: x.transpose(2, 3).mean(1),
    "sums by rows' numbers": lambda x, s: (x * (torch.arange(x.shape[-2])[:, None] / 65)).mean(1),
    "sums of triangles": lambda x, s: x.tril().mean(1),
    "sums of images": lambda x, s: x.mean(0),
    "sums between which is one place": lambda x, s: (x.unsqueeze(3).mean(1, keepdim=True), x.unsqueeze(3).mean(1).unsqueeze(1)),
    "sums behind which is one place": lambda x, s: (x.unsqueeze(-1).amax(1, keepdim=True), x.unsqueeze(-1).mean(1).unsqueeze(0)),
    "sums of places beside one": lambda x, s: (x.unsqueeze(3).mean((2, 3, 4), keepdim=True), x.unsqueeze(-1).mean((2, 3, 4))),
    "a part of sums": lambda x, s: x.unsqueeze(2).mean((0, 2), keepdim=True) + x.unsqueeze(2),
    "mean of places": lambda x, s: x.mean((2, 3)) * s,
    "largest of places": lambda x, s: x.exp().mean((2, 3), keepdim=True) * x,
    "normalised places": lambda x, s: (x - x.mean((2, 3), keepdim=True)) * ((x * x).mean((2, 3), keepdim=True) + 0.1).rsqrt(),
    "softmax of places": lambda x, s: x.flatten(2).softmax(-1).unflatten(2, (x.shape[2], x.shape[3])),
    "all but channels": lambda x, s: (x / 64).sum((0, 2, 3)) + s,
    "mean by columns": lambda x, s: (x * torch.arange(x.shape[-1]) / 1000).mean((2, 3)),
    "mean of reversed": lambda x, s: (x.flip(-1) * x).mean((2, 3)),
    "group norm": lambda x, s: F.group_norm(x, 2, s, s),
    "counted": lambda x, s: ((x > 0).sum(1), (x > column(s)).any(1), (x < 9).all((2, 3))),
    "integers": lambda x, s: ((x.nan_to_num() * 9).to(torch.int32).sum(1), (x.nan_to_num() * 9).to(torch.int8).amax(1)),
    "doubles": lambda x, s: (x.double().mean(1), x.double().mean((2, 3))),
}
SHAPES = (
    (2, 4, 3, 5),
    (1, 4, 1, 7),
    (3, 4, 7, 1),
    (2, 4, 14, 14),
    (1, 4, 1, 1),
    (2, 4, 33, 65),
    (1, 4, 5, 1025),
    (0, 4, 3, 3),
    (2, 4, 3, 0),
)


@pytest.mark.parametrize("name", FORMS)
def test_sizes_of_the_call(name: str) -> None:
    torch.manual_seed(0)
    f, example = FORMS[name], (torch.randn(5, 4, 6, 7), torch.randn(4))
    sizes = ({0: Dim("n", min=0), 2: Dim("h", min=0), 3: Dim("w", min=0)}, None)
    try:
        model = dhlo.compile(export(Call(f), example, dynamic_shapes=(sizes,)))
    except Exception:  # where torch.export finds a size that isn't any one
        model = dhlo.compile(export(Call(f), example, dynamic_shapes=(({0: A, 2: A, 3: A}, None),)))
    done = 0
    for shape in SHAPES:
        x, s = torch.randn(shape), torch.randn(4)
        if x.numel():
            x.view(-1)[0] = torch.nan
            x = guarded(x)
        try:
            y = model(x, s)
        except dhlo.ContractError:
            continue
        done += 1
        torch.testing.assert_close(y, f(x, s), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert done >= 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", [(2, 4, 7, 7), (1, 4, 1, 40), (2, 4, 16, 16), (3, 4, 7, 1), (2, 4, 1, 5)])
def test_static_sizes(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    f, args = FORMS[name], (torch.randn(shape), torch.randn(4))
    model = dhlo.compile(export(Call(f), args))
    torch.testing.assert_close(model(*args), f(*args), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("image", [(1, 1), (1, 6), (6, 1)], ids=str)
def test_images_of_one_row_or_column(name: str, image: tuple[int, int]) -> None:
    """Dims of one element are no loops, wherever they are."""
    torch.manual_seed(0)
    f, s = FORMS[name], torch.randn(4)
    model = dhlo.compile(export(Call(f), (torch.randn(5, 4, *image), s), dynamic_shapes=(({0: A}, None),)))
    for batch in (5, 1, 2, 0):
        x = torch.randn(batch, 4, *image)
        try:
            y = model(guarded(x) if batch else x, s)
        except dhlo.ContractError:
            assert batch != 5
            continue
        torch.testing.assert_close(y, f(x, s), rtol=1e-5, atol=1e-5, equal_nan=True)
