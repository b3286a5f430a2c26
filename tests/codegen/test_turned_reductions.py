"""Reductions over a dim in which operands aren't contiguous, but results are: norms over channels of images, beside PyTorch."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dhlo

SIZES = [(1, 1), (2, 3), (1, 17), (33, 1), (7, 7), (8, 8), (9, 7), (5, 13), (14, 14), (16, 16), (40, 24)]


class Norm(nn.Module):
    """Over the channels of images, to [batch, height, width, channels]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.permute(0, 2, 3, 1))
        return y


class Back(Norm):
    """And back to images; what comes before the norm is done where images lie."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 2 + x.abs()).permute(0, 3, 1, 2)


class Several(nn.Module):
    """Results of several passes; costly values are kept between them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.tanh(x).permute(0, 2, 3, 1)
        low = y.mean(-1)
        return torch.softmax(y, -1), torch.exp(y), low


class Frames(nn.Module):
    """[batch, channels, frames] to f16."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x.transpose(1, 2), (37,)).half()


class Both(nn.Module):
    """Over channels and rows: vectors run along columns."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.permute(0, 3, 1, 2)
        return torch.exp(y - y.amax((2, 3), keepdim=True))


class Added(nn.Module):
    """What is added lies as results do."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(x.permute(0, 2, 3, 1) + y, -1)


def compiled(model: nn.Module, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    dims = [Dim("b", max=64), Dim("h", max=256), Dim("w", max=256)]
    named = {0: dims[0], 2: dims[1], **({3: dims[2]} if len(shapes[0]) == 4 else {})}
    also = [{0: dims[0], 1: dims[1], 2: dims[2]} for _ in shapes[1:]]
    exported = torch.export.export(model, tuple(torch.randn(s, dtype=dtype) for s in shapes), dynamic_shapes=(named, *also))
    return dhlo.compile(exported, cache="")


def close(got: Any, want: Any, tolerance: float = 2e-6) -> None:
    for a, b in zip(got if isinstance(got, tuple) else [got], want if isinstance(want, tuple) else [want], strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=5 * tolerance)


def turned(model: Any) -> bool:
    """Whether a group has both kernels to choose from."""
    return any(sum(k.startswith("reduce_") for k in set(model.native.launches[a:b])) == 2 for a, b in _groups(model))


def _groups(model: Any) -> list[tuple[int, int]]:
    meta = json.loads(model.native.metadata)
    (level,) = (x for x in meta["levels"] if x["name"] == model.native.level)
    return [(a, b) for a, b in level["groups"]]


@pytest.mark.parametrize("channels", [1, 3, 16, 17, 40])
@pytest.mark.parametrize("kind", [Norm, Back])
def test_norms_over_channels(kind: type[Norm], channels: int) -> None:
    torch.manual_seed(0)
    model = kind(channels).eval()
    f = compiled(model, (2, channels, 6, 5))
    assert turned(f) == (channels > 1)
    for size in SIZES:
        x = torch.randn(2, channels, *size)
        close(f(x), model(x))


def test_several_results() -> None:
    torch.manual_seed(0)
    f = compiled(Several(), (2, 21, 6, 5))
    for size in SIZES:
        x = 3 * torch.randn(3, 21, *size)
        close(f(x), Several()(x))


def test_frames() -> None:
    torch.manual_seed(0)
    f = compiled(Frames(), (2, 37, 9))
    assert turned(f)
    for frames in (1, 2, 3, 15, 16, 17, 63, 64, 65, 130):
        x = torch.randn(2, 37, frames)
        close(f(x), Frames()(x), 1e-3)


def test_two_reduced_dims() -> None:
    torch.manual_seed(0)
    f = compiled(Both(), (2, 5, 6, 7))
    for size in SIZES:
        x = torch.randn(2, 5, *size)
        close(f(x), Both()(x))


def test_what_lies_as_results_do_is_read_so() -> None:
    torch.manual_seed(0)
    f = compiled(Added(), (2, 19, 6, 5), (2, 6, 5, 19))
    assert not turned(f)
    for size in SIZES:
        x, y = torch.randn(2, 19, *size), torch.randn(2, *size, 19)
        close(f(x, y), Added()(x, y))


def test_nan_and_infinity_stay_at_their_positions() -> None:
    torch.manual_seed(0)
    model = Norm(24).eval()
    f = compiled(model, (2, 24, 6, 5))
    x = torch.randn(2, 24, 9, 7)
    x[0, 3, 1, 2], x[1, 5, 8, 6] = float("nan"), float("inf")
    got, want = f(x), model(x)
    assert torch.equal(got.isnan(), want.isnan()) and got.isnan().sum() == 2 * 24
    close(got.nan_to_num(), want.nan_to_num())


def test_f64() -> None:
    torch.manual_seed(0)
    model = Norm(20).double().eval()
    f = compiled(model, (2, 20, 6, 5), dtype=torch.float64)
    for size in SIZES:
        x = torch.randn(1, 20, *size, dtype=torch.float64)
        close(f(x), model(x), 1e-12)


def test_sizes_known_to_the_compiler() -> None:
    torch.manual_seed(0)
    model = Norm(48).eval()
    f = dhlo.compile(torch.export.export(model, (torch.randn(2, 48, 7, 9),)), cache="")
    x = torch.randn(2, 48, 7, 9)
    close(f(x), model(x))


@pytest.mark.parametrize("channels", [5, 33])
def test_values_of_a_square_are_kept_where_they_are(channels: int) -> None:
    """What is computed before a square is turned has its shape too, but other places."""

    class Turned(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.tanh(x) * 2 + x.abs()
            z = y.transpose(1, 2)
            return torch.softmax(z, -1), torch.softmax(y + z, -1)

    x, model = torch.randn(3, channels, channels), Turned()
    close(dhlo.compile(torch.export.export(model, (x,)), cache="")(x), model(x))
