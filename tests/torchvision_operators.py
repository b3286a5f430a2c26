"""torchvision's operators as programs see them, whether or not the library is there: schemas, fake implementations, and what they
compute by definition. Importing this module defines them where they don't exist."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["LEAST", "deform_conv2d", "nms", "ps_roi_align", "ps_roi_pool", "roi_align", "roi_pool"]

LEAST = torch.finfo(torch.float32).min
Tensor = torch.Tensor


# ---------------------------------------------------------------------------------------------------- what they compute
def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    order, kept = scores.sort(stable=True, descending=True).indices.tolist(), list[int]()
    x1, y1, x2, y2 = boxes.unbind(1)
    areas = (x2 - x1) * (y2 - y1)
    zero = boxes.new_zeros([])
    for j in order:
        for i in kept:
            w = torch.minimum(x2[i], x2[j]) - torch.maximum(x1[i], x1[j])
            h = torch.minimum(y2[i], y2[j]) - torch.maximum(y1[i], y1[j])
            both = (w if w > 0 else zero) * (h if h > 0 else zero)
            if float(both / (areas[i] + areas[j] - both)) > threshold:
                break
        else:
            kept.append(j)
    return torch.tensor(kept, dtype=torch.int64)


def _bilinear(planes: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """planes [C, H, W] at a place, up to one element outside of the image."""
    height, width = planes.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return planes.new_zeros(planes.shape[0])
    corners = []
    for p, n in ((y, height), (x, width)):
        low = min(int(max(p, 0)), n - 1)
        part = float(max(p, 0)) - low if low < n - 1 else 0.0
        corners.append([(low, 1 - part), (min(low + 1, n - 1), part)])
    total = planes.new_zeros(planes.shape[0])
    for row, v in corners[0]:
        for column, w in corners[1]:
            total = total + v * w * planes[:, row, column]
    return total


def _aligned(x: Tensor, rois: Tensor, scale: float, cells: tuple[int, int], ratio: int, aligned: bool, sensitive: bool) -> Tensor:
    rows, columns = cells
    channels = x.shape[1] // (rows * columns) if sensitive else x.shape[1]
    out = x.new_zeros(rois.shape[0], channels, rows, columns)
    factor = torch.tensor(scale, dtype=x.dtype)
    for k, roi in enumerate(rois):
        edges = roi[1:] * factor - (0.5 if aligned or sensitive else 0.0)
        start, size = edges[:2].flip(0), (edges[2:] - edges[:2]).flip(0)
        if not (aligned or sensitive):
            size = size.clamp(min=1.0)
        size = size / torch.tensor(cells, dtype=x.dtype)
        grid = [ratio if ratio > 0 else math.ceil(s) for s in size]
        count = grid[0] * grid[1] if sensitive else max(grid[0] * grid[1], 1)
        for row in range(rows):
            for column in range(columns):
                planes = x[int(roi[0])]
                planes = planes[row * columns + column :: rows * columns] if sensitive else planes
                for i in range(grid[0]):
                    y = start[0] + row * size[0] + (i + 0.5) * size[0] / grid[0]
                    for j in range(grid[1]):
                        at = start[1] + column * size[1] + (j + 0.5) * size[1] / grid[1]
                        out[k, :, row, column] += _bilinear(planes, y, at)
        out[k] /= torch.tensor(count, dtype=x.dtype)
    return out


def _mapping(out: Tensor) -> Tensor:
    return torch.arange(out.shape[1:].numel(), dtype=torch.int32).reshape(out.shape[1:]).expand(out.shape).contiguous()


def roi_align(x: Tensor, rois: Tensor, scale: float, rows: int, columns: int, ratio: int, aligned: bool) -> Tensor:
    return _aligned(x, rois, scale, (rows, columns), ratio, aligned, False)


def ps_roi_align(x: Tensor, rois: Tensor, scale: float, rows: int, columns: int, ratio: int) -> tuple[Tensor, Tensor]:
    out = _aligned(x, rois, scale, (rows, columns), ratio, True, True)
    return out, _mapping(out)


def _nearest(x: float) -> int:
    """Halves away from zero."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x)) if abs(x) % 1 == 0.5 else round(x)


def _windows(roi: Tensor, scale: float, cells: tuple[int, int], sizes: tuple[int, int], mean: bool) -> list[list[tuple[int, int]]]:
    """Where the windows of a region begin and end, along both dims."""
    factor, found = torch.tensor(scale, dtype=roi.dtype), []
    for d, (count, n) in enumerate(zip(cells, sizes, strict=True)):
        start, end = _nearest(float(roi[2 - d] * factor)), _nearest(float(roi[4 - d] * factor))
        size = torch.tensor(max(end - start + (0 if mean else 1), 1), dtype=roi.dtype) / count
        limit = n - 1 if mean else n
        bounds = [(math.floor(c * size) + start, math.ceil((c + 1) * size) + start) for c in range(count)]
        found.append([(min(max(lo, 0), limit), min(max(hi, 0), limit)) for lo, hi in bounds])
    return found


def roi_pool(x: Tensor, rois: Tensor, scale: float, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    out = x.new_zeros(rois.shape[0], x.shape[1], rows, columns)
    at = torch.full(out.shape, -1, dtype=torch.int32)
    for k, roi in enumerate(rois):
        along = _windows(roi, scale, (rows, columns), (x.shape[2], x.shape[3]), False)
        for i, (top, bottom) in enumerate(along[0]):
            for j, (left, right) in enumerate(along[1]):
                if bottom <= top or right <= left:
                    continue
                for c in range(x.shape[1]):
                    most, where = LEAST, -1
                    for y in range(top, bottom):
                        for z in range(left, right):
                            if x[int(roi[0]), c, y, z] > most:
                                most, where = float(x[int(roi[0]), c, y, z]), y * x.shape[3] + z
                    out[k, c, i, j], at[k, c, i, j] = most, where
    return out, at


def ps_roi_pool(x: Tensor, rois: Tensor, scale: float, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    out = x.new_zeros(rois.shape[0], x.shape[1] // (rows * columns), rows, columns)
    for k, roi in enumerate(rois):
        along = _windows(roi, scale, (rows, columns), (x.shape[2], x.shape[3]), True)
        for i, (top, bottom) in enumerate(along[0]):
            for j, (left, right) in enumerate(along[1]):
                if bottom > top and right > left:
                    planes = x[int(roi[0]), i * columns + j :: rows * columns]
                    out[k, :, i, j] = planes[:, top:bottom, left:right].mean((1, 2))
    return out, _mapping(out)


def deform_conv2d(x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *numbers: Any) -> Tensor:
    """By grid_sample in f64, a group of offsets and an element of the window at a time."""
    (sh, sw, ph, pw, dh, dw, groups, offset_groups), use_mask = numbers[:8], numbers[8]
    batch, channels, height, width = x.shape
    out, _, kh, kw = weight.shape
    oh, ow = offset.shape[2:]
    own, parts = channels // offset_groups, []
    moved = offset.double().reshape(batch, offset_groups, kh, kw, 2, oh, ow)
    factors = (
        mask.double().reshape(batch, offset_groups, kh, kw, oh, ow)
        if use_mask
        else moved.new_ones(1).expand(batch, offset_groups, kh, kw, oh, ow)
    )
    for g in range(offset_groups):
        planes = F.pad(x[:, g * own : (g + 1) * own].double(), (1, 1, 1, 1))  # places are those of an image with zeros around it
        for i in range(kh):
            for j in range(kw):
                y = (torch.arange(oh) * sh - ph + i * dh)[:, None] + moved[:, g, i, j, 0] + 1
                z = (torch.arange(ow) * sw - pw + j * dw)[None] + moved[:, g, i, j, 1] + 1
                grid = torch.stack([2 * z / (width + 1) - 1, 2 * y / (height + 1) - 1], -1)
                sampled = F.grid_sample(planes, grid, align_corners=True) * factors[:, g, i, j, None]
                parts.append(sampled)  # [B, own, oh, ow]
    columns = torch.stack(parts, 1).reshape(batch, offset_groups, kh, kw, own, oh, ow).permute(0, 1, 4, 2, 3, 5, 6)
    columns = columns.reshape(batch, groups, channels // groups, kh, kw, oh, ow)
    y = torch.einsum("bgcijyx,gocij->bgoyx", columns, weight.double().reshape(groups, out // groups, -1, kh, kw))
    return (y.reshape(batch, out, oh, ow) + bias.double()[:, None, None]).to(x.dtype)


# ---------------------------------------------------------------------------------------------------- definitions
def _any_number(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(min=0), dtype=torch.int64)


def _pooled(x: Tensor, rois: Tensor, channels: Any, rows: Any, columns: Any, second: bool) -> Any:
    shape = (rois.shape[0], channels, rows, columns)
    return (x.new_empty(shape), x.new_empty(shape, dtype=torch.int32)) if second else x.new_empty(shape)


def _convolved(x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *numbers: Any) -> Tensor:
    sh, sw, ph, pw, dh, dw = numbers[:6]
    sizes = zip(x.shape[2:], weight.shape[2:], (sh, sw), (ph, pw), (dh, dw), strict=True)
    return x.new_empty(x.shape[0], weight.shape[0], *((n + 2 * p - (d * (k - 1) + 1)) // s + 1 for n, k, s, p, d in sizes))


_REGIONS = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_STEPS = "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w"
_OPERATORS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "nms": ("(Tensor dets, Tensor scores, float iou_threshold) -> Tensor", nms, _any_number),
    "roi_align": (
        f"({_REGIONS}, int sampling_ratio, bool aligned) -> Tensor",
        roi_align,
        lambda x, r, s, h, w, ratio, aligned: _pooled(x, r, x.shape[1], h, w, False),
    ),
    "roi_pool": (f"({_REGIONS}) -> (Tensor, Tensor)", roi_pool, lambda x, r, s, h, w: _pooled(x, r, x.shape[1], h, w, True)),
    "ps_roi_align": (
        f"({_REGIONS}, int sampling_ratio) -> (Tensor, Tensor)",
        ps_roi_align,
        lambda x, r, s, h, w, ratio: _pooled(x, r, x.shape[1] // (h * w), h, w, True),
    ),
    "ps_roi_pool": (
        f"({_REGIONS}) -> (Tensor, Tensor)",
        ps_roi_pool,
        lambda x, r, s, h, w: _pooled(x, r, x.shape[1] // (h * w), h, w, True),
    ),
    "deform_conv2d": (
        f"(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, {_STEPS}, SymInt groups, SymInt offset_groups, "
        "bool use_mask) -> Tensor",
        deform_conv2d,
        _convolved,
    ),
}


def _define() -> torch.library.Library | None:
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass
    if hasattr(torch.ops.torchvision, "nms"):
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")  # noqa: TOR901
    for name, (schema, kernel, fake) in _OPERATORS.items():
        library.define(name + schema)
        library.impl(name, kernel, "CPU")
        torch.library.register_fake(f"torchvision::{name}", fake, lib=library)
    return library


_LIBRARY = _define()  # operators are there as long as it is
