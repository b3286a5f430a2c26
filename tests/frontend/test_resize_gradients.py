"""Gradients of padding, interpolation, sampling and max pooling against eager PyTorch at many sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dhlo
from tests.frontend.helpers import EXPORTED_FOR_ALL_SIZES, export

A: Any = torch.ops.aten
AUTO = torch.export.Dim.AUTO
rn = torch.randn


RESIZED: dict[str, Any] = {  # operator, its arguments after the input's, those of its gradient after the sizes
    "nearest": (A.upsample_nearest2d, (0.4, 1.7), ()),
    "exact": (A._upsample_nearest_exact2d, (None, None), ()),
    "bilinear": (A.upsample_bilinear2d, (None, None), (False,)),
    "corners": (A.upsample_bilinear2d, (None, None), (True,)),
    "factors": (A.upsample_bilinear2d, (0.4, 1.7), (False,)),
    "bicubic": (A.upsample_bicubic2d, (None, None), (False,)),
    "antialiased": (A._upsample_bilinear2d_aa, (None, None), (False,)),
    "antialiased bicubic": (A._upsample_bicubic2d_aa, (None, None), (True,)),
}


@pytest.mark.parametrize("name", RESIZED)
def test_interpolation(name: str) -> None:
    op, factors, corners = RESIZED[name]
    back = getattr(A, f"{op.__name__.split('.')[-1]}_backward")

    def fn(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        return back(grad, grad.shape[2:], x.shape, *corners, *factors)

    cases = [((2, 3, 7, 6), (9, 5)), ((1, 2, 20, 3), (8, 5)), ((3, 1, 5, 5), (2, 17)), ((2, 2, 2, 31), (3, 4))]
    sets = [(rn(x), rn(*x[:2], *out)) for x, out in cases]
    fixed = op in (A.upsample_bilinear2d, A.upsample_bicubic2d, A._upsample_bicubic2d_aa)  # torch.export takes no others
    model = dhlo.compile(export(fn, sets[0], ({}, {}) if fixed else None))
    for x, grad in sets[:1] if fixed else sets:
        torch.testing.assert_close(model(x, grad), fn(x, grad), rtol=1e-4, atol=1e-4)


def test_interpolation_of_other_ranks() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        solid = [*y.shape]
        return (
            A.upsample_linear1d_backward(x[..., :5].cos(), [5], [*x.shape], False),
            A.upsample_nearest1d_backward(x[..., :4].sin(), [4], [*x.shape]),
            A.upsample_trilinear3d_backward(y.cos().repeat(1, 1, 2, 1, 2), [2 * solid[2], solid[3], 2 * solid[4]], solid, True),
        )

    args = rn(2, 3, 7), rn(2, 1, 3, 4, 5).double()
    model = dhlo.compile(export(fn, args, ({}, {})))
    for got, want in zip(model(*args), fn(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_padding() -> None:
    def fn(x: torch.Tensor) -> Any:
        y, line = x.cos(), x[:, :, 0]
        found = []
        for back, pad in ((A.reflection_pad2d_backward, [1, 2, 3, 0]), (A.replication_pad2d_backward, [4, 0, 1, 3])):
            grad = F.pad(y, pad) + 0.5
            found.append(back(grad, x, pad))
        return (
            *found,
            A.replication_pad1d_backward(F.pad(line.sin(), [0, 5]) + 1, line, [0, 5]),
            A.replication_pad3d_backward(F.pad(y, [2, 1, 0, 1, 1, 1]), x, [2, 1, 0, 1, 1, 1]),
        )

    model = dhlo.compile(export(fn, (rn(2, 3, 7, 6),)))
    for size in ((1, 2, 4, 9), (3, 1, 8, 3), (2, 2, 5, 31)):
        x = rn(size)
        for got, want in zip(model(x), fn(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@EXPORTED_FOR_ALL_SIZES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_max_pooling(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        window = [3, 2], [2, 1], [1, 0], [1, 2], True
        top, at = A.max_pool2d_with_indices(x, *window)
        first = A.max_pool2d_with_indices_backward(top.cos(), x, *window, at)
        cube = [2], [1], [0], [1], False
        top, at = A.max_pool3d_with_indices(y, *cube)
        second = A.max_pool3d_with_indices_backward(top.cos(), y, *cube, at)
        top, at = A.adaptive_max_pool2d(x, [3, 4])
        return first, second, A.adaptive_max_pool2d_backward(top.cos(), x, at)

    model = dhlo.compile(export(fn, (rn(2, 3, 7, 6).to(dtype), rn(2, 3, 5, 6, 7).to(dtype))))
    tol = 1e-5 if dtype == torch.float32 else 3e-2
    for x, y in ((rn(1, 2, 9, 20), rn(1, 3, 4, 5, 6)), (rn(3, 1, 4, 5), rn(3, 1, 3, 8, 4))):
        x, y = x.to(dtype), y.to(dtype)
        for got, want in zip(model(x, y), fn(x, y), strict=True):
            torch.testing.assert_close(got, want, rtol=tol, atol=tol)


MODES = ("bilinear", "nearest", "bicubic")
# Every mode and every padding once; their product where time doesn't matter.
SAMPLED = [
    pytest.param(m, p, marks=() if MODES.index(m) == p and m != "bicubic" else pytest.mark.slow) for m in MODES for p in range(3)
]


@pytest.mark.parametrize(("mode", "padding"), SAMPLED)
def test_grid_sample(mode: str, padding: int) -> None:
    kind = MODES.index(mode)

    def fn(grad: torch.Tensor, x: torch.Tensor, grid: torch.Tensor) -> Any:
        return [A.grid_sampler_2d_backward(grad, x, grid, kind, padding, corners, [True, True]) for corners in (False, True)]

    sizes = [(2, 3, 7, 6, 4, 5), (1, 2, 9, 20, 3, 1), (3, 1, 5, 2, 6, 7)]
    sets = [(rn(b, c, p, q), rn(b, c, h, w), 1.7 * rn(b, p, q, 2)) for b, c, h, w, p, q in sizes]
    model = dhlo.compile(export(fn, sets[0]))
    for args in sets:
        for got, want in zip(sum(map(list, model(*args)), []), sum(map(list, fn(*args)), []), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_grid_sample_of_volumes() -> None:
    def fn(grad: torch.Tensor, x: torch.Tensor, grid: torch.Tensor) -> Any:
        _, found = A.grid_sampler_3d_backward(grad, x, grid, 0, 1, False, [False, True])
        return found, A.grid_sampler_3d_backward(grad, x, grid, 0, 2, True, [True, True])[0]

    sizes = [(2, 3, 4, 3, 5), (1, 1, 2, 6, 3)]
    sets = [(rn(b, c, 2, 3, 4), rn(b, c, *s).double().float(), 1.5 * rn(b, 2, 3, 4, 3)) for b, c, *s in sizes]
    model = dhlo.compile(export(fn, sets[0]))
    for args in sets:
        for got, want in zip(model(*args), fn(*args), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
