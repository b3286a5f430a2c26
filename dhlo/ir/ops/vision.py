"""What detectors compute of boxes, and samples of images at computed places; each has a kernel of its own."""

# ruff: noqa: E704
from typing import Any

import sympy
import torch

from dhlo.ir.dialect import Flag, Kind, Op, Out, Tensor, TypeError_, attr, dims_of, equal_shapes, same
from dhlo.ir.mlir import ir
from dhlo.ir.types import TensorType, from_mlir

Args = list[torch.Tensor]
POOLS = ("max", "argmax", "mean")
LEAST = torch.finfo(torch.float32).min
_FLOATS = ("f16", "f32", "f64")


class Suppress(Op, name="suppress"):
    """Which of N boxes are kept, i1 [N], by greedy suppression: each that isn't suppressed by one before it, in order, suppresses
    those behind it with which its intersection over union is above `threshold`. `boxes` f32 or f64 [4, N] are rows x1, y1, x2, y2.
    An intersection over union that is NaN suppresses nothing (torchvision::nms of boxes in the order of their scores)."""

    kind = Kind.OPAQUE
    boxes: Tensor
    threshold: ir.FloatAttr
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        (x,) = operands
        if x.rank != 2 or x.shape[0] != 4 or x.dtype.name not in ("f32", "f64"):
            raise TypeError_("suppress wants boxes [4, N] of f32 or f64")
        return [TensorType.of("i1", x.shape[1:])]

    def reference(self, args: Args, sizes: Any) -> Args:
        x1, y1, x2, y2 = boxes = args[0]
        areas, threshold = (x2 - x1) * (y2 - y1), attr(self, "threshold")
        keep = torch.ones(x1.shape[0], dtype=torch.bool)
        for i in range(x1.shape[0]):
            if keep[i]:
                low = torch.maximum(boxes[:2, i, None], boxes[:2, i + 1 :])
                extents = torch.minimum(boxes[2:, i, None], boxes[2:, i + 1 :]) - low
                extents = torch.where(extents > 0, extents, 0)
                both = extents[0] * extents[1]
                keep[i + 1 :] &= ~((both / (areas[i] + areas[i + 1 :] - both)).double() > threshold)
        return [keep]


def _check_pooled(x: TensorType, y: TensorType, sensitive: bool) -> str | None:
    """Why `y` has no regions of `x` pooled."""
    if x.rank != 4 or y.rank != 4 or x.dtype.name not in _FLOATS:
        return "regions of images [B, C, H, W] of floats are [K, C, rows, columns]"
    if not all(s.is_Integer and s > 0 for s in y.shape[2:]):
        return "as many rows and columns of a region are static"
    want = y.shape[1] * y.shape[2] * y.shape[3] if sensitive else y.shape[1]
    if want.is_Integer and x.shape[1].is_Integer and want != x.shape[1]:
        return "results have other channels than the images" + (
            ", whose channels are one for each of a result's" if sensitive else ""
        )
    return None


def _channels(x: torch.Tensor, out: list[int], row: int, column: int, sensitive: bool) -> torch.Tensor:
    """The planes of an image that an element of all result channels is made of."""
    return x[row * out[3] + column :: out[2] * out[3]] if sensitive else x


class RoiAlign(Op, name="roi_align"):
    """Means of bilinear samples in the cells of K regions: [K, C, rows, columns] of images x [B, C, H, W].

    A region has a row of `places` [K, 5], of x's dtype: y and x where it starts, height and width of a cell, and what sums are
    divided by; and one of `counts` i64 [K, 3]: its image, out of range an error, and how many samples a cell has down and across.
    Sample i of n of cell c stands at start + c * size + (i + 0.5) * size / n, each step rounded to x's dtype. It counts from -1 to
    H (or W), brought inside of the image. Of `sensitive` regions, channel c of a result's cell is made of the image's channel
    (c * rows + row) * columns + column. (torchvision::roi_align, torchvision::ps_roi_align.)"""

    kind = Kind.OPAQUE
    explicit = True
    x: Tensor
    places: Tensor
    counts: Tensor
    samples: ir.IntegerAttr  # that each cell has in each direction; 0: as many as counts say
    sensitive: Flag
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        (x, places, counts), (y,) = operands, results
        if places.rank != 2 or places.shape[1] != 5 or counts.rank != 2 or counts.shape[1] != 3:
            return "regions have places [K, 5] and counts [K, 3]"
        if places.dtype != x.dtype or y.dtype != x.dtype or counts.dtype.name != "i64" or attrs["samples"] < 0:
            return "places and results have the images' dtype, counts are of i64"
        return _check_pooled(x, y, attrs["sensitive"])

    def reference(self, args: Args, sizes: Any) -> Args:
        x, places, counts = args
        out = [sizes(s) for s in from_mlir(self.results[0]).shape]
        y = torch.zeros(out, dtype=x.dtype)
        for k in range(out[0]):
            image, *grid = counts[k].tolist()
            weights = [
                _tap_weights(places[k, d], places[k, 2 + d], out[2 + d], attr(self, "samples") or grid[d], x.shape[2 + d])
                for d in range(2)
            ]
            for row in range(out[2]):
                for column in range(out[3]):
                    at = [w[c].nonzero()[:, 0] for w, c in zip(weights, (row, column), strict=True)]
                    planes = _channels(x[image], out, row, column, attr(self, "sensitive")).to(weights[0].dtype)
                    part = planes[:, at[0]][:, :, at[1]]
                    total = torch.einsum("chw,h,w->c", part, weights[0][row, at[0]], weights[1][column, at[1]])
                    y[k, :, row, column] = (total / places[k, 4].to(total.dtype)).to(x.dtype)
        return [y]

    def flops(self) -> sympy.Expr:
        """Of cells with one sample each: four elements, multiplied and added."""
        return 8 * from_mlir(self.results[0]).numel


def _tap_weights(start: torch.Tensor, size: torch.Tensor, cells: int, samples: int, n: int) -> torch.Tensor:
    """What each of n elements along a dim counts in each cell: [cells, n]."""
    weights = torch.zeros(cells, n, dtype=torch.float64 if start.dtype == torch.float64 else torch.float32)
    for c in range(cells):
        for i in range(samples):
            p = start + c * size + torch.tensor(i + 0.5, dtype=start.dtype) * size / torch.tensor(samples, dtype=start.dtype)
            if n == 0 or not -1 <= p <= n:
                continue
            p = p.clamp(min=0)
            low = min(int(p), n - 1)
            part = float(p) - low if low < n - 1 else 0.0
            weights[c, low] += 1 - part
            weights[c, min(low + 1, n - 1)] += part
    return weights


class RoiPool(Op, name="roi_pool"):
    """Windows of K regions of images x [B, C, H, W], one for each element of a result [K, C, rows, columns].

    `images` i64 [K] says which image a region is of, out of range an error; `rows` [K, rows, 2] and `columns` [K, columns, 2] i64
    where windows begin and end, as far as they are inside of the image. `how`: `max`, the greatest element above the least f32 (of
    f16, minus infinity), which it is else; `argmax`, the position y * W + x in i32 of the first such, -1 where there is none;
    `mean`. Empty windows give 0 (argmax: -1). `sensitive` as of `roi_align`. (torchvision::roi_pool, torchvision::ps_roi_pool.)"""

    kind = Kind.OPAQUE
    explicit = True
    x: Tensor
    images: Tensor
    rows: Tensor
    columns: Tensor
    how: ir.StringAttr
    sensitive: Flag
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        (x, images, rows, columns), (y,) = operands, results
        if attrs["how"] not in POOLS or y.dtype.name != ("i32" if attrs["how"] == "argmax" else x.dtype.name):
            return "a pool is max or mean, of the images' dtype, or argmax of i32"
        if images.rank != 1 or rows.rank != 3 or columns.rank != 3 or rows.shape[2] != 2 or columns.shape[2] != 2:
            return "windows are images [K], rows [K, rows, 2] and columns [K, columns, 2]"
        if any(t.dtype.name != "i64" for t in (images, rows, columns)):
            return "windows are of i64"
        return _check_pooled(x, y, attrs["sensitive"])

    def reference(self, args: Args, sizes: Any) -> Args:
        x, images, rows, columns = args
        out, how = from_mlir(self.results[0]), attr(self, "how")
        shape = [sizes(s) for s in out.shape]
        y = torch.full(shape, -1 if how == "argmax" else 0, dtype=out.dtype.torch)
        for k in range(shape[0]):
            for row in range(shape[2]):
                for column in range(shape[3]):
                    (top, bottom), (left, right) = rows[k, row].tolist(), columns[k, column].tolist()
                    top, left = max(top, 0), max(left, 0)
                    bottom, right = min(bottom, x.shape[2]), min(right, x.shape[3])
                    if top < bottom and left < right:
                        planes = _channels(x[images[k]], shape, row, column, attr(self, "sensitive"))
                        y[k, :, row, column] = _pooled(planes, (top, bottom, left, right), how)
        return [y]


def _pooled(planes: torch.Tensor, window: tuple[int, int, int, int], how: str) -> torch.Tensor:
    top, bottom, left, right = window
    x = planes[:, top:bottom, left:right]
    if how == "mean":
        wide = x.double() if x.dtype == torch.float64 else x.float()
        return (wide.sum((1, 2)) / ((bottom - top) * (right - left))).to(x.dtype)
    least = float("-inf") if x.dtype == torch.float16 else LEAST
    flat = torch.where(x > least, x, least).flatten(1)
    if how == "max":
        return flat.max(1).values
    at = flat.max(1).indices  # the first
    position = (top + at // (right - left)) * planes.shape[2] + left + at % (right - left)
    return torch.where(flat.max(1).values > least, position, -1).int()


class SampledColumns(Op, name="sampled_columns"):
    """Bilinear samples of images x [B, H, W, C] at computed places, times a factor: [B, P, T, C].

    `places` [B, G, T, 2, P] are y and x of T samples for each of P positions, of each of the G groups that channels are in;
    `factors` [B, G, T, P]. All are of f32 or f64. What is outside of the image is 0. (Columns of torchvision::deform_conv2d.)"""

    kind = Kind.OPAQUE
    x: Tensor
    places: Tensor
    factors: Tensor
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, places, factors = operands
        if x.rank != 4 or places.rank != 5 or factors.rank != 4 or places.shape[3] != 2 or x.dtype.name not in ("f32", "f64"):
            raise TypeError_("sampled_columns wants [B, H, W, C], places [B, G, T, 2, P] and factors [B, G, T, P]")
        b, g, t, _, p = places.shape
        if places.dtype != x.dtype or not same(factors, x.with_shape([b, g, t, p])):
            raise TypeError_("sampled_columns wants a factor for each place, all of one dtype")
        if not (g.is_Integer and t.is_Integer and x.shape[3].is_Integer and g > 0 and x.shape[3] % g == 0):
            raise TypeError_("sampled_columns wants static channels, samples, and groups that divide the channels")
        return [x.with_shape([x.shape[0], p, t, x.shape[3]])]

    def reference(self, args: Args, sizes: Any) -> Args:
        x, places, factors = args
        batch, height, width, channels = x.shape
        groups = places.shape[1]
        y, at = places.unbind(3)  # [B, G, T, P]
        inside = (y > -1) & (y < height) & (at > -1) & (at < width)
        y, at = (torch.where(inside, p, 0) for p in (y, at))
        planes = x.reshape(batch, height * width, groups, channels // groups).transpose(1, 2)  # [B, G, H * W, C / G]
        total = torch.zeros(*y.shape, channels // groups, dtype=x.dtype)
        for dy in (0, 1):
            for dx in (0, 1):
                row, column = (y.floor() + dy).long(), (at.floor() + dx).long()
                weight = (y - y.floor() if dy else 1 - (y - y.floor())) * (at - at.floor() if dx else 1 - (at - at.floor()))
                there = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
                where = torch.where(there, row * width + column, 0).flatten(2)[..., None].expand(-1, -1, -1, channels // groups)
                found = planes.gather(2, where).reshape(total.shape) if height * width else torch.zeros_like(total)
                total = total + torch.where(there[..., None], weight[..., None] * found, 0)
        total = total * factors[..., None]
        return [total.permute(0, 3, 2, 1, 4).reshape(batch, -1, places.shape[2], channels)]

    def flops(self) -> sympy.Expr:
        """Four elements, multiplied and added."""
        return 8 * from_mlir(self.results[0]).numel


class SampledPlanes(Op, name="sampled_planes"):
    """Bilinear samples [B, C, *out] of images x [B, C, H, W] at the rows y [B, *out] and columns at [B, *out], all of f32 or
    f64. What is outside of the image is 0."""

    kind = Kind.OPAQUE
    x: Tensor
    y: Tensor
    at: Tensor
    out: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, y, at = operands
        if x.rank != 4 or x.dtype.name not in ("f32", "f64") or y.rank < 2:
            raise TypeError_("sampled_planes wants images [B, C, H, W] of f32 or f64, and places [B, *out]")
        if not same(y, at) or not same(y, x.with_shape([x.shape[0], *y.shape[1:]])):
            raise TypeError_("sampled_planes wants a row and a column for each place, of the image's dtype")
        return [x.with_shape([*x.shape[:2], *y.shape[1:]])]

    def computes(self, k: int) -> bool:
        return k > 0

    def reference(self, args: Args, sizes: Any) -> Args:
        x, y, at = args
        batch, channels, height, width = x.shape
        total = torch.zeros(batch, channels, *y.shape[1:], dtype=x.dtype)
        for dy in (0, 1):
            for dx in (0, 1):
                row, column = y.floor() + dy, at.floor() + dx
                weight = (y - y.floor() if dy else 1 - (y - y.floor())) * (at - at.floor() if dx else 1 - (at - at.floor()))
                there = (row >= 0) & (row < height) & (column >= 0) & (column < width)
                where = torch.where(there, row * width + column, 0).long().flatten(1)[:, None].expand(-1, channels, -1)
                flat = x.reshape(batch, channels, height * width)
                found = flat.gather(2, where).reshape(total.shape) if height * width else torch.zeros_like(total)
                total = total + weight[:, None] * torch.where(there[:, None], found, 0)
        return [total]

    def flops(self) -> sympy.Expr:
        """Four elements, multiplied and added."""
        return 8 * from_mlir(self.results[0]).numel


class ResampledBytes(Op, name="resampled_bytes"):
    """x (ui8) with `dim` of another size: element o of it is the sum of weights[o, k] times the element first[o] + k, the last one
    if there is none, rounded as a number of `bits` binary places and bounded to [0, 255]. first [out] (i64), of [0, n), weights
    [out, taps] (i16), an even number of them, bits [1] (i32)."""

    kind = Kind.OPAQUE
    x: Tensor
    first: Tensor
    weights: Tensor
    bits: Tensor
    dim: ir.IntegerAttr
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, first, weights, bits = operands
        dims_of([attrs["dim"]], x.rank)
        names = [t.dtype.name for t in operands]
        if names != ["ui8", "i64", "i16", "i32"] or (first.rank, weights.rank, bits.rank) != (1, 2, 1):
            raise TypeError_("resampled_bytes wants ui8, places [out] (i64), weights [out, taps] (i16) and bits [1] (i32)")
        equal_shapes([weights.with_shape([first.shape[0], weights.shape[1]]), weights], "places and weights")
        return [x.with_shape([first.shape[0] if d == attrs["dim"] else s for d, s in enumerate(x.shape)])]

    def computes(self, k: int) -> bool:
        return k == 0 and attr(self, "dim") == from_mlir(self.operands[0]).rank - 1

    def reference(self, args: Args, sizes: Any) -> Args:
        x, first, weights, bits = args
        d, n = attr(self, "dim"), x.shape[attr(self, "dim")]
        at = (first.clamp(0, max(n - 1, 0))[:, None] + torch.arange(weights.shape[1])).clamp(max=max(n - 1, 0))
        found = x.movedim(d, -1).int()[..., at] * weights.int()
        y = (found.sum(-1, dtype=torch.int32) + (1 << bits - 1)) >> bits
        return [y.clamp(0, 255).to(torch.uint8).movedim(-1, d)]

    def flops(self) -> sympy.Expr:
        return 2 * from_mlir(self.operands[2]).shape[1] * from_mlir(self.results[0]).numel


__all__ = ["LEAST", "POOLS", "ResampledBytes", "RoiAlign", "RoiPool", "SampledColumns", "SampledPlanes", "Suppress"]
