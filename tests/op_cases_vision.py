"""Cases of boxes, regions and samples at computed places, for tests/test_ops.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dhlo.ir.dialect import build
from dhlo.ir.ops import vision
from dhlo.ir.types import DType, TensorType
from tests.programs import Draw, Part, anything, plain, t, within

__all__ = ["CASES"]

SUMS = {"f32": 2e-5, "f64": 1e-12, "f16": 4e-3}
IMAGES, REGIONS = 2, 5
SIZES = ("n", "m")


def _case(
    cls: Any, args: Sequence[tuple[TensorType, Draw]], attrs: dict[str, Any], out: TensorType | None = None, **more: Any
) -> Part:
    results = None if out is None else [out]
    label = f"{cls.OPERATION_NAME} {[str(ty) for ty, _ in args]} {attrs}"
    return Part(args, lambda *v: build(cls, v, attrs, results=results).results, label=label, **more)


def boxes(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Corners, on few coordinates where many are equal; some boxes are empty, turned around, or no numbers."""
    x = torch.rand(2, shape[1], generator=g) * 12
    y = torch.cat([x, x + torch.rand(2, shape[1], generator=g) * 6 - 0.5]).to(d.torch)
    y = torch.where(torch.rand(shape[1], generator=g) < 0.5, y.round(), y)
    strange = torch.rand(shape, generator=g)
    return torch.where(strange < 0.02, float("nan"), torch.where(strange > 0.98, float("inf"), y))


def places(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Where regions start, the sizes of cells, one of which is far larger than any image, and what sums are divided by."""
    start = torch.rand(shape[0], 2, generator=g) * 30 - 8
    size = torch.rand(shape[0], 2, generator=g) * torch.tensor([[8.0], [1.0], [3.0], [8.0], [1e4]])[: shape[0]]
    size[3, 1] = -size[3, 1]
    return torch.cat([start, size, torch.tensor([[1.0], [4.0], [3.0], [6.0], [1e4]])[: shape[0]]], 1).to(d.torch)


def counts(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    return torch.tensor([[0, 1, 1], [1, 2, 2], [1, 3, 1], [0, 2, 3], [1, 900, 700]], dtype=d.torch)[: shape[0]]


def image_numbers(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    return torch.randint(0, IMAGES, shape, generator=g).to(d.torch)


def windows(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Some are empty, some reach beyond the image."""
    start = torch.randint(-4, 34, shape[:-1], generator=g)
    return torch.stack([start, start + torch.randint(-1, 22, shape[:-1], generator=g)], -1).to(d.torch)


def _align(d: str, channels: int, cells: tuple[int, int], samples: int, sensitive: bool = False) -> Part:
    out = t(d, REGIONS, channels, *cells)
    planes = channels * cells[0] * cells[1] if sensitive else channels
    args = [(t(d, IMAGES, planes, *SIZES), plain), (t(d, REGIONS, 5), places), (t("i64", REGIONS, 3), counts)]
    return _case(vision.RoiAlign, args, {"samples": samples, "sensitive": sensitive}, out, tol=SUMS, atol=2e-4)


def _pool(d: str, channels: int, cells: tuple[int, int], how: str) -> Part:
    out = t("i32" if how == "argmax" else d, REGIONS, channels, *cells)
    planes = channels * cells[0] * cells[1] if how == "mean" else channels
    args = [
        (t(d, IMAGES, planes, *SIZES), plain if how == "mean" else anything),
        (t("i64", REGIONS), image_numbers),
        (t("i64", REGIONS, cells[0], 2), windows),
        (t("i64", REGIONS, cells[1], 2), windows),
    ]
    return _case(vision.RoiPool, args, {"how": how, "sensitive": how == "mean"}, out, tol=SUMS, atol=2e-4)


def _sampled(d: str, channels: int, groups: int, taps: int) -> Part:
    args = [
        (t(d, IMAGES, *SIZES, channels), plain),
        (t(d, IMAGES, groups, taps, 2, "n + m"), within(-3, 35)),
        (t(d, IMAGES, groups, taps, "n + m"), plain),
    ]
    return _case(vision.SampledColumns, args, {}, tol=SUMS, atol=1e-4)


def _sampled_planes(d: str, channels: object, *out: object) -> Part:
    args = [(t(d, IMAGES, channels, *SIZES), plain), *[(t(d, IMAGES, *out), within(-3, 35))] * 2]
    return _case(vision.SampledPlanes, args, {}, tol=SUMS, atol=1e-4)


def _below(most: int) -> Draw:
    return lambda d, shape, g: torch.randint(0, most, shape, generator=g).to(d.torch)


def _resampled(dim: int, taps: int, *shape: object) -> Part:
    """Weights that add up to about one, in 12 binary places."""
    args = [
        (t("ui8", *shape), _below(256)),
        (t("i64", "m + 1"), _below(40)),
        (t("i16", "m + 1", taps), lambda d, s, g: torch.randint(-1500, 8000 // taps, s, generator=g).to(d.torch)),
        (t("i32", 1), lambda d, s, g: torch.full(s, 12).to(d.torch)),
    ]
    return _case(vision.ResampledBytes, args, {"dim": dim})


CASES: dict[str, list[Part]] = {
    "dhlo.suppress": [
        _case(vision.Suppress, [(t(d, 4, size), boxes)], {"threshold": threshold})
        for d, size, threshold in (("f32", "n", 0.5), ("f64", "m", 0.3), ("f32", "m", 0.0), ("f32", "n", -1.0), ("f64", 9, 0.9))
    ],
    "dhlo.roi_align": [
        _align("f32", 3, (2, 3), 0),
        _align("f32", 70, (3, 2), 2),
        _align("f64", 17, (1, 1), 0),
        _align("f16", 5, (2, 2), 2),
        _align("f32", 3, (3, 2), 0, sensitive=True),
        _align("f64", 18, (2, 1), 3, sensitive=True),
    ],
    "dhlo.roi_pool": [
        *(_pool(d, channels, (3, 2), how) for d, channels in (("f32", 3), ("f64", 17), ("f16", 66)) for how in ("max", "argmax")),
        _pool("f32", 5, (2, 3), "mean"),
        _pool("f64", 17, (2, 2), "mean"),
        _pool("f16", 2, (1, 1), "mean"),
    ],
    "dhlo.resampled_bytes": [
        _resampled(1, 2, 3, "n + 1"),
        _resampled(1, 6, "n", 40),
        _resampled(2, 20, 2, "n", 41),
        _resampled(2, 4, 23, 5, "n + 1"),
        _resampled(0, 4, "n + 1", "m"),
        _resampled(1, 8, 2, 40, "n"),
        _resampled(1, 2, 2, "n + 1", 3, 43),
    ],
    "dhlo.sampled_planes": [
        _sampled_planes("f32", 3, "n", "m"),
        _sampled_planes("f32", "m", 3, 5),
        _sampled_planes("f64", 2, "n + m"),
        _sampled_planes("f32", 1, 2, 3, 17),
    ],
    "dhlo.sampled_columns": [_sampled("f32", 3, 1, 2), _sampled("f32", 40, 2, 3), _sampled("f64", 6, 3, 1)],
}
