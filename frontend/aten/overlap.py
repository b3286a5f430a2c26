"""Windows as columns (aten.im2col), and sums of windows that overlap (aten.col2im, the frames of aten.istft)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv

from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import as_expr

__all__ = ["overlapped"]


@lowers(A.im2col.default)
def _im2col(
    b: OpBuilder,
    x: Value,
    window: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """Columns [B, C * kh * kw, L] of the windows of x [B, C, H, W]."""
    lead = [0] * (b.rank(x) - 2)
    x = b.pad(x, [*lead, *padding], [*lead, *padding], 0.0)
    for k, (size, gap, step) in enumerate(zip(window, dilation, stride, strict=True)):
        d = b.rank(x) - 2 + (0 if k == 0 else 1)
        n = FloorDiv(b.shape(x)[d] - gap * (size - 1) - 1, step) + 1
        at = b.add(b.iota([size, n], 0, "i64", step=gap), b.iota([size, n], 1, "i64", step=step))
        x = b.take(x, [at], [d], d)
    *front, c, kh, oh, kw, ow = b.shape(x)
    r = len(front)
    x = b.transpose(x, [*range(r), r, r + 1, r + 3, r + 2, r + 4])
    return b.reshape(x, [*front, c * kh * kw, oh * ow])


@lowers(A.col2im.default)
def _col2im(
    b: OpBuilder,
    x: Value,
    size: Sequence[Any],
    window: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """The image [B, C, H, W] of columns [B, C * kh * kw, L]: each element the sum of those of the windows over it."""
    *front, rows, _ = b.shape(x)
    counts = [
        FloorDiv(as_expr(s) + 2 * p - gap * (k - 1) - 1, step) + 1
        for s, p, gap, k, step in zip(size, padding, dilation, window, stride, strict=True)
    ]
    (kh, kw), (oh, ow) = window, counts
    b.dims.same(b.shape(x)[-1], oh * ow)
    r = len(front)
    x = b.reshape(x, [*front, b.size(rows / (kh * kw)), kh, kw, oh, ow])
    x = b.transpose(x, [*range(r), r, r + 1, r + 3, r + 2, r + 4])  # [.., C, kh, oh, kw, ow]
    for k, d in enumerate((r + 1, r + 3)):
        x = _terms(b, x, d, as_expr(size[k]), dilation[k], padding[k], stride[k])
    how = "any" if b.dtype(x).is_bool else "sum"
    return b.convert(b.reduce(x, how, [r + 1, r + 3]), b.dtype(x))


def _terms(b: OpBuilder, x: Value, d: int, size: Any, gap: int, pad: int, step: int) -> Value:
    """Of n windows of k elements (dims d and d + 1) that lie `step` apart, `gap` between their elements, those over each of `size`
    places: [.., terms, size, ..], some of them 0."""
    k, n = b.shape(x)[d : d + 2]
    apart = [int(k), size] if gap > 1 else [int(FloorDiv(k + step - 1, step)), size]
    term, place = b.iota(apart, 0, "i64"), b.iota(apart, 1, "i64", start=pad)
    if gap > 1:  # a term for each element of a window
        element, from_start = term, b.sub(place, b.mul(term, gap))
        number = b.floordiv(from_start, step)
        inside = b.ew(ew.Eq, b.sub(from_start, b.mul(number, step)), 0)
    else:  # for each window over a place
        number = b.sub(b.floordiv(place, step), term)
        element = b.sub(place, b.mul(number, step))
        inside = b.ew(ew.Lt, element, k)
    inside = b.ew(ew.And, inside, b.ew(ew.And, b.ew(ew.Ge, number, 0), b.ew(ew.Lt, number, n)))
    at = [b.minimum(b.maximum(i, 0), s - 1) for i, s in ((element, k), (number, n))]
    values = b.take(x, at, [d, d + 1], d)
    return b.select(b.expand(inside, b.shape(values), [d, d + 1]), values, 0, dtype=b.dtype(x))


def overlapped(b: OpBuilder, frames: Value, hop: int, start: Any, size: Any) -> Value:
    """Sums of frames [.., F, n] laid `hop` apart, from `start` on: [.., size]; zeros past the last frame."""
    d = b.rank(frames) - 2
    *front, count, n = b.shape(frames)
    terms = FloorDiv(n + hop - 1, hop)  # the frames over one sample
    frames = b.pad(frames, [0] * (d + 2), [0] * (d + 1) + [terms * hop - n], 0.0)
    frames = b.reshape(frames, [*front, count, terms, hop])
    apart = [count + terms - 1, terms]  # blocks of `hop` samples
    term = b.iota(apart, 1, "i64")
    number = b.sub(b.iota(apart, 0, "i64"), term)
    inside = b.ew(ew.And, b.ew(ew.Ge, number, 0), b.ew(ew.Lt, number, count))
    values = b.take(frames, [b.minimum(b.maximum(number, 0), count - 1), term], [d, d + 1], d)
    values = b.select(b.expand(inside, b.shape(values), [d, d + 1]), values, 0.0, dtype=b.dtype(frames))
    blocks = b.reduce(values, "sum", [d + 1])
    whole = (count + terms - 1) * hop
    y = b.reshape(blocks, [*front, whole])
    more = b.dims.fold(sympy.Max(start + size - whole, 0))
    y = b.pad(y, [0] * (d + 1), [0] * d + [more], 0.0)
    return b.slice(y, d, start, size)
