"""Pools of images whose channels lie last, as they are and as tokens, at many sizes of one program."""

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

POOLS: dict[str, Callable[[Tensor], Any]] = {
    "max 2": lambda x: F.max_pool2d(x, 2),
    "max 3, padded": lambda x: F.max_pool2d(x, 3, 1, 1),
    "max of 2 x 3 by 3 x 2": lambda x: F.max_pool2d(x, (2, 3), (3, 2), (1, 0)),
    "max, dilated": lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2),
    "max, beyond the image": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "max, beyond and padded": lambda x: F.max_pool2d(x.sin(), 4, 3, 2, ceil_mode=True) * 2,
    "max 6": lambda x: F.max_pool2d(x, 6),
    "avg 2": lambda x: F.avg_pool2d(x, 2),
    "avg 3": lambda x: F.avg_pool2d(x, 3, 1),
    "avg 7": lambda x: F.avg_pool2d(x, 7),
    "avg 1 x 4": lambda x: F.avg_pool2d(x.relu(), (1, 4)),
    "avg, padded": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg, of what is inside": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg, beyond the image": lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True),
    "avg, beyond the image by 5": lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True, divisor_override=5),
    "two": lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2),
    "of a pool": lambda x: F.avg_pool2d(F.max_pool2d(x, 2, 1), 2, 1),
    "rows alone": lambda x: F.max_pool2d(x, (3, 1), (1, 1), (1, 0)),
}


def images(f: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """f of images with channels last, and what that is with channels last and first."""
    return lambda x: (lambda y: (y.permute(0, 2, 3, 1), y.contiguous()))(f(x.permute(0, 3, 1, 2)))


def compared(f: Callable[[Tensor], Any], model: Any, x: Tensor, tolerance: float) -> bool:
    if x.numel() and x.is_floating_point():
        x.view(-1)[x.numel() // 2] = torch.nan
        x.view(-1)[0] = -torch.inf
    try:
        want = f(x)
    except RuntimeError:  # a window is larger than the image
        with pytest.raises(dhlo.DhloError):
            model(x)
        return False
    try:
        got = model(x)
    except dhlo.ContractError:  # torch.export takes a result of one element for another program
        return False
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False)
    return True


TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
    torch.int32: 1e-6,
    torch.uint8: 1e-6,
}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_images(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    f, dims = images(POOLS[name]), {d: Dim.AUTO for d in range(4)}
    example = (torch.randn(2, 19, 21, 12) * 9).to(dtype)
    try:
        f(example)
    except RuntimeError as e:
        assert dtype not in (torch.float32, torch.float64), str(e)
        pytest.skip(str(e))
    model = dhlo.compile(export(Call(f), (example,), dynamic_shapes=((dims,),)))
    shapes = [(1, 19, 21, 12), (2, 7, 7, 16), (0, 9, 9, 17), (3, 15, 8, 33), (2, 40, 17, 1), (1, 33, 64, 3), (1, 8, 13, 70)]
    assert sum(compared(f, model, (torch.randn(s) * 9).to(dtype), TOLERANCES[dtype]) for s in shapes) >= 2


@pytest.mark.sampled(8)
@pytest.mark.parametrize("side", [(14, 14), (9, 16), (7, 8)], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_tokens(name: str, side: tuple[int, int]) -> None:
    torch.manual_seed(0)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        image = POOLS[name](x.transpose(1, 2).reshape(x.shape[0], x.shape[2], *side))
        return image.flatten(2).transpose(1, 2), image * 1

    model = dhlo.compile(export(Call(f), (torch.randn(2, side[0] * side[1], 24),), dynamic_shapes=(({0: Dim.AUTO, 2: Dim.AUTO},),)))
    done = [
        compared(f, model, torch.randn(b, side[0] * side[1], c), 1e-6)
        for b, c in ((1, 24), (3, 16), (2, 17), (0, 8), (2, 5), (1, 130))
    ]
    assert sum(done) >= 2


@pytest.mark.parametrize("rank", [1, 3])
def test_lines_and_volumes(rank: int) -> None:
    torch.manual_seed(0)
    pool = F.max_pool1d if rank == 1 else F.max_pool3d
    mean = F.avg_pool1d if rank == 1 else F.avg_pool3d

    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x.movedim(-1, 1)
        return pool(y, 2).movedim(1, -1), pool(y, 3, 2, 1).contiguous(), mean(y, 2, 1).movedim(1, -1), mean(y, 3, 2, 1).contiguous()

    example = torch.randn(2, *[9] * rank, 20)
    model = dhlo.compile(export(Call(f), (example,), dynamic_shapes=(({d: Dim.AUTO for d in range(rank + 2)},),)))
    lengths = [[9] * rank, [9] * rank, [5] * rank, range(4, 4 + rank), [8] * rank]  # torch.export takes a line's length for fixed
    shapes = [(b, *n, c) for b, n, c in zip((1, 3, 2, 0, 1), lengths, (20, 33, 16, 8, 7), strict=True)]
    assert sum(compared(f, model, torch.randn(s), 1e-6) for s in shapes) >= 2


class Depthwise(torch.nn.Module):
    """Depthwise convolutions of tokens, whose result is tokens again, an image, or both, and of images with channels last."""

    def __init__(self, channels: int, kernel: tuple[int, int], side: tuple[int, int], dtype: torch.dtype, **kwargs: Any) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, channels, kernel, groups=channels, dtype=dtype, **kwargs)
        self.side = side

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        image = x.transpose(1, 2).reshape(x.shape[0], x.shape[2], *self.side)
        y, rows = self.conv(image), x.unflatten(1, self.side).permute(0, 3, 1, 2)
        z = (self.conv(rows * 2).relu() + 1).permute(0, 2, 3, 1)
        return F.gelu(y.flatten(2).transpose(1, 2)), self.conv(image.sin()).contiguous(), z, self.conv(rows).permute(2, 0, 3, 1) * 3


CONVOLUTIONS: dict[str, Any] = {
    "3 x 3": ((3, 3), {"padding": 1}),
    "without bias": ((3, 3), {"padding": 1, "bias": False}),
    "inside": ((3, 3), {}),
    "strides": ((3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    "dilated": ((3, 3), {"padding": 2, "dilation": 2}),
    "rows": ((1, 3), {"padding": (0, 1)}),
    "5 x 5": ((5, 5), {"padding": 2}),
    "doubles": ((3, 3), {"padding": 1, "dtype": torch.float64}),
    "bfloat16": ((3, 3), {"padding": 1, "dtype": torch.bfloat16}),
}


@pytest.mark.parametrize("channels", [8, 17, 48])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_depthwise(name: str, channels: int) -> None:
    torch.manual_seed(0)
    kernel, options = CONVOLUTIONS[name]
    dtype = options.get("dtype", torch.float32)
    module = Depthwise(channels, kernel, (9, 12), **{"dtype": dtype, **options}).eval().requires_grad_(False)
    model = dhlo.compile(export(module, (torch.randn(2, 108, channels).to(dtype),), dynamic_shapes=({0: Dim.AUTO},)))
    for batch in (1, 0, 3, 2):
        x = torch.randn(batch, 108, channels).to(dtype)
        if batch:
            x[0, 50, 1] = torch.nan
        tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}[dtype]
        for got, want in zip(model(x), module(x), strict=True):
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False)


def test_what_many_paths_lead_to() -> None:
    """Each step reads the one before twice."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(16, 16, 3, padding=1, groups=16)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x.permute(0, 3, 1, 2))
            for _ in range(60):
                y = y * y.sigmoid() + y
            return y.permute(0, 2, 3, 1)

    module = Model().eval().requires_grad_(False)
    model = dhlo.compile(export(module, (torch.randn(2, 5, 6, 16),), dynamic_shapes=({d: Dim.AUTO for d in range(3)},)))
    x = torch.randn(1, 9, 4, 16)
    torch.testing.assert_close(model(x), module(x), rtol=1e-3, atol=1e-3, equal_nan=True, check_stride=False)
