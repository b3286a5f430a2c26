"""torchvision's operators of boxes, regions and deformed windows, as its kernels for CPUs compute them; known by name, without the
library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from dhlo.errors import CompileError
from dhlo.frontend.aten.indexing import nonzero
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.dims import static_value
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import lookup, vision
from dhlo.ir.symbols import as_expr, is_static
from dhlo.ir.types import TensorType

__all__: list[str] = []


def _check_dtypes(b: OpBuilder, allowed: Sequence[str], *tensors: Value) -> None:
    """Raises CompileError for tensors of several dtypes, and of ones that torchvision has no kernels for on CPUs."""
    names = [b.dtype(x).name for x in tensors]
    if len(set(names)) > 1 or names[0] not in allowed:
        hint = "convert all of them to float32"
        raise CompileError(f"torchvision has no kernel of {', '.join(names)} on CPUs", hint=hint)


# ---------------------------------------------------------------------------------------------------- boxes
@lowers("torchvision::nms")
def _nms(b: OpBuilder, boxes: Value, scores: Value, threshold: float) -> Value:
    """The boxes [N, 4] that are kept, i64, from the highest score down; of equal scores the first one comes first."""
    _check_dtypes(b, ("f32", "f64"), boxes, scores)
    b.dims.same(b.shape(boxes)[0], b.shape(scores)[0])
    order = b.op(lookup.Sort, [scores], {"dim": 0, "descending": True})[1]
    corners = b.swap(b.take(boxes, [order], [0], 0), 0, 1)
    keep = b.op(vision.Suppress, [corners], {"threshold": _number(b, threshold)})
    return b.take(order, [b.pick(nonzero(b, keep), 1, 0)], [0], 0)


def _number(b: OpBuilder, x: Any) -> float:
    value = static_value(x)
    if not isinstance(value, int | float | sympy.Number):
        raise CompileError("the threshold or scale is a number that calls give", hint="make it a constant")
    return float(value)


# ---------------------------------------------------------------------------------------------------- regions
class _Numbers:
    """Arithmetic that rounds each result to a dtype, as torchvision computes where regions are."""

    def __init__(self, b: OpBuilder, x: Value) -> None:
        self.b, self.dtype = b, b.dtype(x)
        self.narrow = self.dtype.bytes < 4
        self.wide = "f32" if self.narrow else self.dtype.name

    def wider(self, x: Operand) -> Operand:
        """An operand as numbers are computed with: a constant as the dtype has it."""
        if not self.b.is_tensor(x):
            return float(torch.tensor(float(x), dtype=self.dtype.torch))
        return self.b.convert(self.b.convert(x, self.dtype), self.wide)

    def of(self, op: Any, *xs: Operand) -> Value:
        """An elementwise op, rounded."""
        y = self.b.ew(op, *(self.wider(x) for x in xs), dtype=self.wide)
        return self.b.convert(self.b.convert(y, self.dtype), self.wide) if self.narrow else y


def _columns(b: OpBuilder, parts: Sequence[Value]) -> Value:
    return b.concat([b.unsqueeze(p, b.rank(p)) for p in parts], b.rank(parts[0]))


def _regions(b: OpBuilder, x: Value, rois: Value) -> tuple[Value, list[Value]]:
    """Which image each of the regions [K, 5] is of, and where it begins and ends: y, x, y, x."""
    _check_dtypes(b, ("f16", "f32", "f64"), x, rois)
    if b.rank(x) != 4 or b.rank(rois) != 2:
        raise CompileError("images are [B, C, H, W], and regions [K, 5]")
    b.dims.same(b.shape(rois)[1], 5)
    image, left, top, right, bottom = (b.pick(rois, 1, i) for i in range(5))
    return b.convert(b.convert(image, "f32" if b.dtype(rois).bytes < 4 else b.dtype(rois)), "i64"), [top, left, bottom, right]


def _cells(b: OpBuilder, x: Value, rois: Value, cells: Sequence[Any], sensitive: bool) -> list[Any]:
    """The shape of what regions are pooled to."""
    if not all(is_static(as_expr(n)) and int(n) > 0 for n in cells):
        raise CompileError(f"regions of {list(cells)} cells", hint="make numbers of cells positive constants")
    channels, each = b.shape(x)[1], int(cells[0]) * int(cells[1])
    if sensitive:
        b.require(sympy.Eq(channels % each, 0), f"channels must be a multiple of {each}, the cells of a region")
        channels = b.size(FloorDiv(channels, each))
    return [b.shape(rois)[0], channels, *map(as_expr, cells)]


@lowers("torchvision::roi_align")
def _roi_align(b: OpBuilder, x: Value, rois: Value, scale: float, rows: Any, columns: Any, ratio: int, aligned: bool) -> Value:
    shape = _cells(b, x, rois, (rows, columns), False)
    y = _align(b, x, rois, scale, shape, ratio, aligned, sensitive=False)
    return b.convert(y, b.node.meta["val"].dtype)  # inside torch.autocast x is f32 here, and the result of the dtype that x had


@lowers("torchvision::ps_roi_align")
def _ps_roi_align(b: OpBuilder, x: Value, rois: Value, scale: float, rows: Any, columns: Any, ratio: int) -> list[Value]:
    shape = _cells(b, x, rois, (rows, columns), True)
    return [_align(b, x, rois, scale, shape, ratio, True, sensitive=True), _channel_mapping(b, shape)]


def _align(
    b: OpBuilder, x: Value, rois: Value, scale: float, shape: list[Any], ratio: int, aligned: bool, *, sensitive: bool
) -> Value:
    """Means of samples: `ratio` down and across in each cell, or where that is 0 or less, one for each element that it is long."""
    image, edges = _regions(b, x, rois)
    n, i64, ratio = _Numbers(b, x), "i64", max(int(ratio), 0)
    factor = _number(b, scale)
    at = [n.of(ew.Sub, n.of(ew.Mul, e, factor), 0.5 if aligned else 0.0) for e in edges]
    start, end = at[:2], at[2:]
    sizes = [n.of(ew.Sub, e, s) for s, e in zip(start, end, strict=True)]
    if not (aligned or sensitive):
        sizes = [n.of(ew.Maximum, s, 1.0) for s in sizes]
    sizes = [n.of(ew.Div, s, float(c)) for s, c in zip(sizes, shape[2:], strict=True)]
    k = [shape[0]]
    counts = [b.full(k, ratio, i64) if ratio else b.convert(b.op(ew.Ceil, [s]), i64) for s in sizes]
    total = b.mul(*counts)
    divisor = b.convert(total if sensitive else b.maximum(total, 1), n.dtype)
    places = _columns(b, [*(b.convert(v, n.dtype) for v in (*start, *sizes)), divisor])
    attributes = {"samples": ratio, "sensitive": sensitive}
    return b.op(vision.RoiAlign, [x, places, _columns(b, [image, *counts])], attributes, [TensorType.of(n.dtype, shape)])


@lowers("torchvision::roi_pool")
def _roi_pool(b: OpBuilder, x: Value, rois: Value, scale: float, rows: Any, columns: Any) -> list[Value]:
    shape = _cells(b, x, rois, (rows, columns), False)
    return [_pool(b, x, rois, scale, shape, how) for how in ("max", "argmax")]


@lowers("torchvision::ps_roi_pool")
def _ps_roi_pool(b: OpBuilder, x: Value, rois: Value, scale: float, rows: Any, columns: Any) -> list[Value]:
    shape = _cells(b, x, rois, (rows, columns), True)
    return [_pool(b, x, rois, scale, shape, "mean"), _channel_mapping(b, shape)]


def _pool(b: OpBuilder, x: Value, rois: Value, scale: float, shape: list[Any], how: str) -> Value:
    """A maximum or mean of each cell's window; those of means leave out the image's last row and column."""
    image, edges = _regions(b, x, rois)
    n, mean = _Numbers(b, x), how == "mean"
    factor = _number(b, scale)
    ends = [b.convert(_rounded(b, n.of(ew.Mul, e, factor)), "i64") for e in edges]
    windows = [
        _windows(b, n, start, b.maximum(b.add(b.sub(end, start), 0 if mean else 1), 1), cells, b.sub(size, 1) if mean else size)
        for start, end, cells, size in zip(ends[:2], ends[2:], shape[2:], _limits(b, x), strict=True)
    ]
    dtype = "i32" if how == "argmax" else b.dtype(x)
    return b.op(vision.RoiPool, [x, image, *windows], {"how": how, "sensitive": mean}, [TensorType.of(dtype, shape)])


def _limits(b: OpBuilder, x: Value) -> list[Value]:
    return [b.full([], s, "i64") for s in b.shape(x)[2:]]


def _rounded(b: OpBuilder, x: Value) -> Value:
    """To the nearest whole number, halves away from zero."""
    whole = b.op(ew.Trunc, [x])
    rest = b.sub(x, whole)
    up, down = b.ew(ew.Ge, rest, 0.5), b.ew(ew.Le, rest, -0.5)
    return b.add(whole, b.select(up, 1.0, b.select(down, -1.0, 0.0, dtype=b.dtype(x)), dtype=b.dtype(x)))


def _windows(b: OpBuilder, n: _Numbers, start: Value, length: Value, cells: Any, limit: Value) -> Value:
    """Where the windows [K, cells, 2] of regions begin and end, along a dim."""
    size = b.unsqueeze(n.of(ew.Div, length, float(cells)), 1)
    bounds = []
    for op, first in ((ew.Floor, 0), (ew.Ceil, 1)):
        at = b.op(op, [n.of(ew.Mul, b.iota([cells], 0, n.wide, start=first), size)])
        at = b.add(b.convert(at, "i64"), b.unsqueeze(start, 1))
        bounds.append(b.minimum(b.maximum(at, 0), limit))
    return _columns(b, bounds)


def _channel_mapping(b: OpBuilder, shape: list[Any]) -> Value:
    """The channel that each element of a position-sensitive result is made of."""
    channels = shape[1] * shape[2] * shape[3]
    return b.expand(b.reshape(b.iota([channels], 0, "i32"), shape[1:]), shape)


# ---------------------------------------------------------------------------------------------------- deformed windows
@lowers("torchvision::deform_conv2d")
def _deform_conv2d(
    b: OpBuilder,
    x: Value,
    weight: Value,
    offset: Value,
    mask: Value,
    bias: Value,
    stride_h: Any,
    stride_w: Any,
    pad_h: Any,
    pad_w: Any,
    dilation_h: Any,
    dilation_w: Any,
    groups: Any,
    offset_groups: Any,
    use_mask: bool,
) -> Value:
    """A convolution whose windows' elements are each moved by an offset, and multiplied by a mask."""
    tensors = [x, weight, offset, *([mask] if use_mask else []), bias]
    _check_dtypes(b, ("f16", "f32", "f64"), *tensors)
    if not all(s.is_Integer for s in b.shape(weight)) or not b.shape(x)[1].is_Integer:
        raise CompileError("a dynamic number of channels", hint="make channels static")
    window = [int(s) for s in b.shape(weight)[2:]]
    steps = list(zip(b.shape(x)[2:], window, (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w), strict=True))
    out = [b.size(FloorDiv(n + 2 * p - d * (k - 1) - 1, s) + 1) for n, k, s, p, d in steps]
    n, dtype, g, taps = _Numbers(b, x), b.dtype(x), int(offset_groups), window[0] * window[1]
    batch = b.shape(x)[0]
    moved = b.reshape(b.convert(offset, n.wide), [batch, g, *window, 2, *out])
    places = []
    for d, (_, k, s, p, dilation) in enumerate(steps):
        first = b.iota([out[d]], 0, n.wide, start=-p, step=s)
        first = b.expand(first, [k, *out], [1 + d])
        within = b.expand(b.iota([k], 0, n.wide, step=dilation), [k, *out], [0])
        at = b.reshape(n.of(ew.Add, first, within), [k, 1, *out] if d == 0 else [1, k, *out])
        places.append(n.of(ew.Add, at, b.pick(moved, 4, d)))
    positions = out[0] * out[1]
    sampled = b.reshape(b.concat([b.unsqueeze(p, 4) for p in places], 4), [batch, g, taps, 2, positions])
    factors = b.convert(mask, n.wide) if use_mask else b.full([], 1.0, n.wide)
    factors = b.reshape(factors, [batch, g, taps, positions]) if use_mask else b.expand(factors, [batch, g, taps, positions])
    image = b.transpose(b.convert(x, n.wide), [0, 2, 3, 1])
    columns = b.op(vision.SampledColumns, [image, sampled, factors])
    y = b.add(_products(b, columns, b.convert(weight, n.wide), int(groups)), b.convert(bias, n.wide))
    y = b.transpose(b.reshape(y, [batch, *out, b.shape(weight)[0]]), [0, 3, 1, 2])
    return b.convert(y, dtype)


def _products(b: OpBuilder, columns: Value, weight: Value, groups: int) -> Value:
    """Columns [B, P, T, C] times weights [O, C / groups, h, w]: [B * P, O]."""
    batch, positions, taps, channels = b.shape(columns)
    out, own, *_ = b.shape(weight)
    rows = batch * positions
    right = b.transpose(b.reshape(weight, [groups, out / groups, own, taps]), [0, 3, 2, 1])  # [groups, T, C / groups, O / groups]
    right = b.reshape(right, [groups, taps * own, out / groups])
    if groups == 1:
        return b.matmul(b.reshape(columns, [rows, taps * channels]), b.reshape(right, [taps * own, out]))
    left = b.transpose(b.reshape(columns, [rows, taps, groups, own]), [2, 0, 1, 3])
    y = b.matmul(b.reshape(left, [groups, rows, taps * own]), right)
    return b.reshape(b.transpose(y, [1, 0, 2]), [rows, out])
