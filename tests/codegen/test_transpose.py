"""Copies whose memory runs along another dim than their results: permutations and reversals at every size."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
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


class _Images(torch.nn.Module):
    """Tokens seen as images, alone, in arithmetic, turned back, and as a part of what is joined along each dim."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.size = height, width

    def forward(self, x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
        image = x.transpose(1, 2).reshape(x.shape[0], x.shape[2], *self.size)
        column = s[:, None, None]
        out = [image + y, image * column, image.to(torch.float64), image.flip(2) + y, image.flip(3), image.flip(1) * y]
        out += [image[:, 1:] + y[:, 1:], image[:, :, 1:] * 2, image[..., :-1] - column, image.flatten(2).transpose(1, 2) + 1]
        out += [torch.cat([image, y], d) for d in range(4)]
        out += [torch.cat([y, image.relu() * column, image + y], d) for d in range(4)]
        out += [
            image.relu().sum((2, 3)),
            image.sum((1, 2)),
            image.amin(3),
            x.transpose(1, 2)[:, 1:].flip(2),
            image[:, :2] * 2,
            image[..., ::2] * 2,
        ]
        out += [F.pad(x.transpose(1, 2), (0, 1, 2, 0), value=3.0), image.abs().amax((1, 3)), image.flip(2).mean((0, 2))]
        return [*out, image.unsqueeze(1) * y.unsqueeze(2), image.amax(1), image.mean((2, 3)), F.pad(image, (1, 2, 0, 1)) + 1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [(1, 1), (1, 17), (4, 4), (7, 7), (16, 1), (5, 13), (33, 32), (3, 1030)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_as_images(dtype: torch.dtype, size: tuple[int, int]) -> None:
    def draw(batch: int, channels: int) -> tuple[torch.Tensor, ...]:
        shapes = (batch, size[0] * size[1], channels), (batch, channels, *size), (channels,)
        return tuple(torch.randint(-9, 10, shape).to(dtype) for shape in shapes)

    batch, channels = Dim("batch", min=0, max=64), Dim("channels", min=3, max=512)
    dims = ({0: batch, 2: channels}, {0: batch, 1: channels}, {0: channels})
    module = _Images(*size)
    model = dhlo.compile(export(module, draw(3, 5), dynamic_shapes=dims))
    for shape in [(1, 3), (2, 4), (1, 15), (3, 16), (2, 17), (1, 40), (0, 3)]:
        args = draw(*shape)
        for got, want in zip(model(*args), module(*args), strict=True):
            tolerance = 1e-2 if want.dtype == torch.bfloat16 else 1e-6
            torch.testing.assert_close(got, want, rtol=tolerance, atol=0, check_stride=False, equal_nan=True)


class _Large(torch.nn.Module):
    """What is turned and comes from memory: alone, in arithmetic, looked up, joined, narrower and wider."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
        turned = x.transpose(1, 2)
        out = [turned.contiguous(), turned + y, turned.relu() * y.sigmoid(), turned[:, index] + y, turned.to(torch.float64)]
        out += [torch.complex(x, x.abs()).transpose(1, 2).contiguous(), torch.complex(turned, y)]
        return [*out, torch.cat([turned, y], 2), (turned * 4).to(torch.int8), turned.flip(1) - y, x.permute(2, 1, 0).contiguous()]


def test_memory_from_afar() -> None:
    def draw(batch: int, rows: int, columns: int) -> tuple[torch.Tensor, ...]:
        both = (torch.randint(-9, 10, s).to(torch.float32) for s in ((batch, rows, columns), (batch, columns, rows)))
        return (*both, torch.randint(0, columns, (columns,)))

    b, m, n = (Dim(name, min=1, max=1 << 20) for name in ("batch", "rows", "columns"))
    module, dims = _Large(), ({0: b, 1: m, 2: n}, {0: b, 1: n, 2: m}, {0: n})
    model = dhlo.compile(export(module, draw(3, 4, 5), dynamic_shapes=dims))
    for shape in [(2, 1301, 903), (3, 5, 7), (1, 129, 20001), (701, 17, 203), (1, 2049, 1088)]:
        x, y, index = draw(*shape)
        for got, want in zip(model(x, y, index), module(x, y, index), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6, check_stride=False)
        with pytest.raises(dhlo.ContractError, match="out of range"):
            model(x, y, index + 1 + index.max())


class _Reduced(torch.nn.Module):
    """What is turned, reduced with what isn't, along each dim and along all; and functions of rows of both."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        z = x.transpose(1, 2)
        out = [(z + y).sum(-1), (z * y).sum(1), (z - y).abs().amax(-1), (z * y).sum((1, 2)), (z + y).softmax(-1), (y - z).mean(0)]
        out += [F.layer_norm(z + y, (y.shape[2],)), F.cosine_similarity(z, y, -1), (z + y.sigmoid()).var(-1)]
        out.append(torch.where(y > 0, z, y).sum(2))
        return [*out, (z.reshape(z.shape[0], -1) + y.flatten(1)).sum(1), (z + y) * (z + y).norm(dim=1, keepdim=True)]


def test_reduced_beside_what_lies_straight() -> None:
    torch.manual_seed(0)

    def draw(batch: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch, rows, columns), torch.randn(batch, columns, rows)

    b, m, n = (Dim(name, min=2, max=1 << 12) for name in ("batch", "rows", "columns"))
    module = _Reduced()
    model = dhlo.compile(export(module, draw(3, 4, 5), dynamic_shapes=({0: b, 1: m, 2: n}, {0: b, 1: n, 2: m})))
    for shape in [(2, 2, 2), (3, 17, 16), (2, 33, 130), (5, 15, 2), (2, 2, 31), (2, 700, 513)]:
        args = draw(*shape)
        for got, want in zip(model(*args), module(*args), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, check_stride=False)
