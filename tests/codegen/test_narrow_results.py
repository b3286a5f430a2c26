"""Results of a few elements in their last dim, and elements that lie a few apart: vectors run along the dim before."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim, export

import dhlo
from tests.calls import Call
from tests.test_memory_bounds import guarded

A: Any = Dim.AUTO
KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int16, torch.uint8, torch.bool]
COUNTS = [2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 47, 64, 100, 1023, 1024, 1025, 2100]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, shape).to(dtype)


def check(f: Callable[..., Any], make: Callable[[int, int], tuple[torch.Tensor, ...]], counts: list[int] = COUNTS) -> None:
    """`make` gives arguments for two sizes, which are dynamic. They end where memory ends."""
    one, other = make(5, 20), make(6, 21)
    shapes = [(x.shape, y.shape) for x, y in zip(one, other, strict=True)]
    dims = tuple({d: A for d, (m, n) in enumerate(zip(*both, strict=True)) if m != n} for both in shapes)
    model = dhlo.compile(export(Call(f), one, dynamic_shapes=(dims,)))
    rng = random.Random(0)
    for n in rng.sample(counts, len(counts)):
        args = tuple(guarded(x) for x in make(rng.randint(2, 4), n))
        torch.testing.assert_close(model(*args), f(*args), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("width", (2, 3, 4, 5))
def test_stacked(width: int, dtype: torch.dtype) -> None:
    def f(*xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        together = torch.stack(xs, -1)
        return together, torch.stack(xs[::-1], -1).flatten(-2)

    check(f, lambda m, n: tuple(numbers(m, n, dtype=dtype) for _ in range(width)), COUNTS[:: 1 if width == 3 else 3])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("step", (2, 3, 4, 5))
def test_elements_that_lie_apart(step: int, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, last = x[..., ::step], x[..., step - 1 :: step]
        return first, last, first.flip(-1), x.unflatten(-1, (-1, step)).unbind(-1)[1], x[:, : step * 2 : step]

    check(f, lambda m, n: (numbers(m, n * step, dtype=dtype),), COUNTS[:: 1 if step == 3 else 3])


@pytest.mark.parametrize("width", (2, 3, 4))
def test_pixels(width: int) -> None:
    """Channels are last, become first, and are last again."""

    def f(x: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, ...]:
        planes = x.permute(2, 0, 1).float() / 255
        return planes, (planes.permute(1, 2, 0) - mean) / (mean + 1), (planes * 255).permute(1, 2, 0).round().to(torch.uint8)

    check(f, lambda m, n: (numbers(m, n, width, dtype=torch.uint8), torch.rand(width)))


def test_rotations() -> None:
    def f(x: torch.Tensor, angles: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., ::2], x[..., 1::2]
        of_pairs = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.complex(cos, sin)
        return of_pairs, torch.view_as_real(z).flatten(-2), torch.view_as_real(z)

    check(f, lambda m, n: (numbers(m, 3, 2 * n), torch.rand(3, n)))


def test_matrices() -> None:
    """Dims of one element lie between, vectors have no room, or nothing comes before."""

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.sum(0), y.sum(1)
        return (
            torch.stack([x[..., None], 2 * x[..., None]], -1),
            torch.stack([a, a + 1, a * 2], -1)[None, :, None],
            torch.stack([b.sum(), b.amax()]),
            torch.stack([torch.stack([b, 2 * b], -1), torch.stack([b + 1, b * 3], -1)], -2),
        )

    check(f, lambda m, n: (numbers(m, n), numbers(n, m)))


@pytest.mark.parametrize("width", (2, 3, 4, 5))
def test_few_are_combined(width: int) -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        norm = x / x.norm(dim=-1, keepdim=True)
        return (
            x.sum(-1),
            x.amax(-1),
            x.amin(-1, keepdim=True) + 1,
            x.softmax(-1),
            norm,
            (x > 0).any(-1),
            (x > 0).all(-1),
            i.sum(-1),
            i.prod(-1),
            x.bfloat16().sum(-1),
            x @ torch.arange(1.0, width + 1),
        )

    def make(m: int, n: int) -> tuple[torch.Tensor, ...]:
        x = numbers(m, n, width)
        x[0, 0, 0] = torch.nan
        return x, numbers(m, n, width, dtype=torch.int64)

    check(f, make)


def test_what_is_repeated() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        image = x[None, None]
        return (
            x.repeat(3, 2),
            x.repeat(1, 4) + 1,
            x.repeat_interleave(2, 1),
            x.repeat_interleave(3, 0),
            x[:, None].expand(-1, 5, -1).flatten(0, 1),
            F.interpolate(image, scale_factor=2),
            F.interpolate(image, size=(x.shape[0], 4 * x.shape[1]), mode="nearest-exact"),
            F.interpolate(image, size=(3 * x.shape[0], 2 * x.shape[1])),
        )

    check(f, lambda m, n: (numbers(m, n),))
