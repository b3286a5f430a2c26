"""Lookups whose indices rise along the vectors: a load and a permutation where they lie close together, a gather elsewhere."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim, export

import dhlo
from tests.calls import Call
from tests.test_memory_bounds import guarded

A: Any = Dim.AUTO
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def table(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 120, shape).to(dtype)


_KINDS = [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "last"), [(torch.float32, False), *((d, True) for d in _KINDS)])
def test_lookups_at_arithmetic_places(dtype: torch.dtype, last: bool) -> None:
    """Places that lie close, far apart, fall, repeat, or rise and fall, of which all look as if they rose."""

    def f(x: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, i = x.shape[-1 if last else -2], torch.arange(steps.shape[0])
        half, thrice = i // 2, 3 * i
        near = (i.float() * 0.37).floor().long()
        parabola = ((i - 9) * (i - 9)).clamp(max=300)
        places = [half, thrice, near, i * 0, 300 - near, parabola, (i - 20).clamp(min=0), (i * 20).clamp(max=250) + i // 64]
        return tuple(x[..., p.clamp(0, n - 1)] if last else x[..., p.clamp(0, n - 1), :] for p in places)

    example = (table(3, 40, 40, dtype=dtype), torch.zeros(50))
    model = dhlo.compile(export(Call(f), example, dynamic_shapes=(({1: A, 2: A}, {0: A}),)))
    rng = random.Random(0)
    for count in [2, 15, 16, 17, 31, 32, 33, 47, 100, *(rng.randint(2, 150) for _ in range(6))]:
        x = table(3, rng.randint(2, 400), rng.randint(2, 400), dtype=dtype)
        args = (x, torch.zeros(count))
        torch.testing.assert_close(model(*args), f(*args), rtol=0, atol=0, equal_nan=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", ("nearest", "bilinear", "bicubic", "area"))
def test_images_of_any_size(mode: str, dtype: torch.dtype) -> None:
    if mode == "nearest" and dtype is torch.float64:
        pytest.skip("which of two elements is nearest is rounded in another way")

    def f(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=like.shape, mode=mode)

    example = (table(2, 3, 20, 20, dtype=dtype), torch.zeros(30, 30))
    model = dhlo.compile(export(Call(f), example, dynamic_shapes=(({0: A, 2: A, 3: A}, {0: A, 1: A}),)))
    rng, tolerance = random.Random(1), {torch.float64: 1e-6, torch.float32: 2e-5}.get(dtype, 2e-2)
    for _ in range(25):
        x = table(rng.randint(2, 3), 3, rng.randint(2, 70), rng.randint(2, 70), dtype=dtype)
        like = torch.zeros(rng.randint(2, 150), rng.randint(2, 150))
        torch.testing.assert_close(model(x, like), f(x, like), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", ("bilinear", "bicubic"))
def test_antialiased_images_of_any_size(mode: str) -> None:
    def f(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=like.shape, mode=mode, antialias=True)

    model = dhlo.compile(
        export(Call(f), (torch.randn(2, 3, 20, 20), torch.zeros(30, 30)), dynamic_shapes=(({0: A, 2: A, 3: A}, {0: A, 1: A}),))
    )
    rng = random.Random(2)
    for k in range(40):
        h, w = rng.randint(2, 70), rng.randint(2, 70)
        to = [(rng.randint(2, 150), rng.randint(2, 150)), (h, w), (2 * h, 3 * w), (h // 3 + 2, w // 2 + 1)][k % 4]
        x = torch.randn(2, 3, h, w)
        torch.testing.assert_close(model(x, torch.zeros(to)), f(x, torch.zeros(to)), rtol=1e-5, atol=3e-6)


def test_places_of_lanes_that_read_nothing() -> None:
    """Around a padded image lookups are masked, and lanes without an element may point anywhere."""

    def f(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        i = torch.arange(steps.shape[0])
        return F.pad(x, (5, 3))[..., (i // 2).clamp(max=x.shape[-1] + 7)] + F.pad(x[..., i // 3], (40, 1))[..., : steps.shape[0]]

    example = (torch.randn(3, 40), torch.zeros(50))
    model = dhlo.compile(export(Call(f), example, dynamic_shapes=(({0: A, 1: A}, {0: A}),)))
    for n, count in [(40, 50), (20, 16), (6, 17), (11, 33), (300, 200), (70, 45)]:
        x = guarded(torch.randn(3, n))
        torch.testing.assert_close(model(x, torch.zeros(count)), f(x, torch.zeros(count)), rtol=0, atol=0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool])
def test_rows_that_share_indices(dtype: torch.dtype) -> None:
    """Any number of rows, joined with others, beside what is the same in all of them, and with another's indices."""

    def f(x: torch.Tensor, y: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, ...]:
        i = torch.arange(steps.shape[0])
        half, near = (i // 2).clamp(max=x.shape[-1] - 1), (i.float() * 0.37).floor().long().clamp(max=y.shape[-1] - 1)
        a, b = x[..., half], y[..., near]
        joined = torch.cat([a, b, x[..., half.flip(0)]], -2)
        beside = torch.cat([a, x[..., :3]], -1)
        return joined, beside, torch.where(steps > 0, a, a.flip(-1)), a.flip(-2)

    example = (table(2, 9, 40, dtype=dtype), table(2, 11, 30, dtype=dtype), torch.randn(50))
    dims = ({0: A, 1: A, 2: A}, {0: A, 1: A, 2: A}, {0: A})
    model = dhlo.compile(export(Call(f), example, dynamic_shapes=(dims,)))
    rng = random.Random(3)
    for rows in [1, 2, 7, 8, 9, 15, 16, 17, 33, *(rng.randint(2, 60) for _ in range(4))]:
        batch, count = rng.randint(2, 4), rng.choice([2, 15, 16, 17, 31, 33, 100, 1025])
        x, y = (
            table(batch, rows, rng.randint(3, 90), dtype=dtype),
            table(batch, rng.randint(1, 20), rng.randint(2, 90), dtype=dtype),
        )
        args = (guarded(x), guarded(y), torch.randn(count))
        torch.testing.assert_close(model(*args), f(*args), rtol=0, atol=0)


@pytest.mark.parametrize("columns", [10, 16, 30, 64])
def test_shared_indices_out_of_range(columns: int) -> None:
    """Are found, whichever row or lane they are of; no rows have none."""

    def f(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        return x[..., torch.arange(steps.shape[0]) * 2 // 3] + 1

    model = dhlo.compile(export(Call(f), (torch.randn(3, 20), torch.zeros(24)), dynamic_shapes=(({0: A, 1: A}, {0: A}),)))
    count = (3 * columns + 1) // 2
    for rows in (1, 8, 11):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(model(x, torch.zeros(count)), f(x, torch.zeros(count)))
        with pytest.raises(dhlo.ContractError, match=rf"{columns}\b.*{columns}"):
            model(x, torch.zeros(count + 1))
    assert model(torch.randn(0, columns), torch.zeros(count)).shape == (0, count)


def test_shared_indices_of_no_rows() -> None:
    """Where a part of a join has no rows, its indices aren't asked for."""

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = x[:, torch.arange(y.shape[1]) // 2]
        return torch.cat([found, y], 0), F.pad(found, (0, 0, 3, 0))

    dims = (({0: A, 1: A}, {0: A, 1: A}),)
    model = dhlo.compile(export(Call(f), (torch.randn(3, 20), torch.randn(4, 24)), dynamic_shapes=dims))
    for rows, columns in ((3, 40), (0, 40), (0, 50)):
        args = torch.randn(rows, 20), torch.randn(4, columns)
        for got, want in zip(model(*args), f(*args), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)
    with pytest.raises(dhlo.ContractError, match="out of range"):
        model(torch.randn(1, 20), torch.randn(4, 50))


def test_images_that_may_keep_their_size() -> None:
    """Whether they do is known at the call; a given factor doesn't count then."""

    def f(x: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes = (F.interpolate(x, size=like.shape, mode="bilinear", align_corners=c) for c in (False, True))
        return (*sizes, F.interpolate(x, scale_factor=(1.0, 1.02), mode="bilinear"))

    dims = (({0: A, 2: A, 3: A}, {0: A, 1: A}),)
    model = dhlo.compile(export(Call(f), (torch.randn(2, 3, 7, 70), torch.randn(9, 8)), dynamic_shapes=dims))
    for size, to in [((4, 5), (4, 5)), ((4, 5), (4, 9)), ((4, 60), (7, 60)), ((3, 49), (2, 20)), ((17, 99), (17, 99))]:
        x, like = torch.randn(2, 3, *size), torch.randn(to)
        x.view(-1)[3], x.view(-1)[-4] = torch.inf, torch.nan
        for got, want in zip(model(x, like), f(x, like), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear"])
@pytest.mark.parametrize("corners", [False, True])
def test_images_that_keep_their_size(mode: str, corners: bool) -> None:
    """No element counts beside its neighbours, finite or not."""
    rank = ["linear", "bilinear", "trilinear"].index(mode) + 1

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=x.shape[2:], mode=mode, align_corners=corners)

    model = dhlo.compile(
        export(Call(f), (torch.randn(2, 3, *[5] * rank),), dynamic_shapes=(({d: A for d in range(rank + 2) if d != 1},),))
    )
    for n in (2, 3, 17):
        x = torch.randn(2, 3, *[n] * rank)
        x.view(-1)[3], x.view(-1)[-4] = torch.inf, torch.nan
        torch.testing.assert_close(model(x), f(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("channels", [1, 3, 4, 5, 40])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_images_of_tokens(mode: str, channels: int) -> None:
    """Channels lie side by side; the image is looked up in another order."""

    def f(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        image = x.permute(0, 2, 1).reshape(x.shape[0], channels, 6, -1)
        return torch.cat([F.interpolate(image, size=like.shape, mode=mode), like.expand(x.shape[0], 2, -1, -1)], 1)

    dims = (({0: A, 1: 6 * Dim("w", min=2, max=200)}, {0: A, 1: A}),)
    model = dhlo.compile(export(Call(f), (torch.randn(2, 48, channels), torch.randn(20, 30)), dynamic_shapes=dims))
    rng = random.Random(4)
    for _ in range(8):
        x, like = (
            torch.randn(rng.randint(2, 3), 6 * rng.randint(2, 30), channels),
            torch.randn(rng.randint(2, 40), rng.randint(2, 90)),
        )
        torch.testing.assert_close(model(x, like), f(x, like), rtol=2e-5, atol=2e-5)
