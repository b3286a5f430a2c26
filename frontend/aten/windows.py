"""Windows of tensors, and convolutions as matrix products with them, for what their kernels don't take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dhlo.frontend.aten.control import loop
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import is_static, product
from dhlo.ir.types import TensorType

__all__ = ["conv_by_columns", "few", "shifted", "transposed_by_columns", "windows"]

_MAX_TAPS = 64  # a slice of the input each: beyond, compiling takes longer than gathering does


def conv_by_columns(
    b: OpBuilder, x: Value, w: Value, stride: list[int], padding: list[int], dilation: list[int], out: list[Any], groups: int
) -> Value:
    """A convolution as products with the input's windows, for what its kernels don't take: channels or windows whose sizes vary,
    integers."""
    (batch, channels), (features, _, *kernel) = b.shape(x)[:2], b.shape(w)
    depth, each = b.size(channels / groups), b.size(features / groups)

    def product_with(columns: Value, w: Value, taps: Any) -> Value:
        columns = b.reshape(columns, [batch, groups, depth * taps, product(out)])
        w = b.expand(b.reshape(w, [groups, each, depth * taps]), [batch, groups, each, depth * taps])
        return b.reshape(b.matmul(w, columns), [batch, each * groups, *out])

    if few(kernel):
        return product_with(windows(b, x, stride, padding, dilation, kernel, out, 2), w, product(kernel))
    last = len(out) + 1

    def one(taps: list[Value]) -> Value:
        y = x
        for d, tap in enumerate(taps):
            at = b.add(b.iota([out[d]], 0, "i64", -padding[d], stride[d]), b.mul(tap, dilation[d]))
            y = _look_up(b, y, [at], [d + 2], d + 2)
        grid = [kernel[-1], out[-1]]
        at = b.add(b.iota(grid, 0, "i64", -padding[-1], dilation[-1]), b.iota(grid, 1, "i64", 0, stride[-1]))
        y = b.transpose(_look_up(b, y, [at], [last], last), [0, 1, last, *range(2, last), last + 1])
        return product_with(y, _row(b, w, taps), kernel[-1])

    return _sum_over_rows(b, kernel, TensorType.of(b.dtype(x), [batch, features, *out]), one)


def transposed_by_columns(
    b: OpBuilder, x: Value, w: Value, stride: list[int], padding: list[int], dilation: list[int], out: list[Any], groups: int
) -> Value:
    """A transposed convolution as products of the kernel's rows with all places of the input, which are then summed where they
    overlap; for what its kernels don't take."""
    (batch, channels, *spatial), (_, per_group, *kernel) = b.shape(x), b.shape(w)
    depth, last = b.size(channels / groups), len(out) + 2
    flat = b.reshape(x, [batch, groups, depth, product(spatial)])

    def source(d: int, place: Value, tap: Value) -> tuple[Value, Value]:
        """Which place of the input meets an element of the kernel at a place of the output, and whether there is one."""
        far = b.sub(b.add(place, padding[d]), b.mul(tap, dilation[d]))
        at = b.floordiv(far, stride[d])
        return at, b.ew(ew.Eq, b.mul(at, stride[d]), far)

    def one(taps: list[Value]) -> Value:
        rows = b.swap(b.reshape(_row(b, w, taps), [groups, depth, per_group * kernel[-1]]), 1, 2)
        y = b.matmul(b.expand(rows, [batch, *b.shape(rows)]), flat)
        y = b.reshape(y, [batch, groups * per_group, kernel[-1], *spatial])
        for d, tap in enumerate(taps):
            at, fits = source(d, b.iota([out[d]], 0, "i64"), tap)
            y = _look_up(b, y, [at], [d + 3], d + 3, fits)
        grid = [kernel[-1], out[-1]]
        tap = b.iota(grid, 0, "i64")
        at, fits = source(-1, b.iota(grid, 1, "i64"), tap)
        return b.reduce(_look_up(b, y, [tap, at], [2, last], last - 1, fits), "sum", [last - 1])

    return _sum_over_rows(b, kernel, TensorType.of(b.dtype(x), [batch, groups * per_group, *out]), one)


def _sum_over_rows(b: OpBuilder, kernel: Sequence[Any], result: TensorType, one: Callable[[list[Value]], Value]) -> Value:
    """The sum of `one(positions)` over all positions in the kernel's dims but the last, in a loop: what one row of the kernel needs
    is in memory at a time."""
    if len(kernel) == 1:
        return one([])
    sizes = kernel[:-1]

    def step(args: list[Value]) -> list[Value]:
        rest: Value = args[0]
        taps: list[Value] = []
        for k in reversed(sizes[1:]):
            taps.insert(0, b.remainder(rest, k))
            rest = b.floordiv(rest, k)
        return [b.add(args[0], 1), b.add(args[1], one([rest, *taps]))]

    start = [b.full([], 0, "i64"), b.full(result.shape, 0, result.dtype)]
    return loop(b, start, lambda args: b.ew(ew.Lt, args[0], product(sizes)), step)[1]


def _row(b: OpBuilder, w: Value, taps: list[Value]) -> Value:
    """The kernel's row [.., .., last] at positions in its other dims."""
    return b.take(w, taps, list(range(2, 2 + len(taps))), 2) if taps else w


def _look_up(b: OpBuilder, x: Value, index: Sequence[Value], dims: Sequence[int], at: int, fits: Value | None = None) -> Value:
    """As `take`, but 0 where the last index is out of range, or doesn't fit."""
    size, where = b.shape(x)[dims[-1]], index[-1]
    inside = b.ew(ew.And, b.ew(ew.Ge, where, 0), b.ew(ew.Lt, where, size))
    inside = inside if fits is None else b.ew(ew.And, inside, fits)
    x = b.take(x, [*index[:-1], b.maximum(b.minimum(where, size - 1), 0)], dims, at)
    return b.select(b.expand(inside, b.shape(x), range(at, at + b.rank(where))), x, 0, dtype=b.dtype(x))


def few(kernel: Sequence[Any]) -> bool:
    """Is the kernel's size fixed, and small enough to write out an op for each element of it?"""
    return all(map(is_static, kernel)) and bool(product(kernel) <= _MAX_TAPS)


def shifted(
    b: OpBuilder, x: Value, stride: list[int], padding: list[int], dilation: list[int], kernel: list[Any], out: list[Any]
) -> list[Value]:
    """What each element of the kernel meets of x [A, B, *spatial], zeros around it: tensors [A, B, *out]."""
    x = b.pad(x, [0, 0, *padding], [0, 0, *padding], 0.0)
    found = [x]
    for i, (s, d, k, o) in enumerate(zip(stride, dilation, kernel, out, strict=True), 2):
        found = [b.slice(y, i, tap * d, o, s) for y in found for tap in range(int(k))]
    return found


def windows(
    b: OpBuilder, x: Value, stride: list[int], padding: list[int], dilation: list[int], kernel: list[Any], out: list[Any], at: int
) -> Value:
    """All elements of the windows of x [A, B, *spatial], zeros around it: [A, *kernel, B, *out], or [A, B, *kernel, *out] with
    `at` 2."""
    if few(kernel):
        taps = shifted(b, x, stride, padding, dilation, kernel, out)
        y = b.concat([b.unsqueeze(t, at) for t in taps], at)
        return b.reshape(y, [*b.shape(y)[:at], *kernel, *b.shape(y)[at + 1 :]])
    first = range(2, 2 + 2 * len(out), 2)  # [k, o] there, in place of the spatial dim
    for dim, s, p, d, k, o in zip(first, stride, padding, dilation, kernel, out, strict=True):
        x = _look_up(b, x, [b.add(b.iota([k, o], 0, "i64", -p, d), b.iota([k, o], 1, "i64", 0, s))], [dim], dim)
    return b.transpose(x, [*range(at), *first, *range(at, 2), *(d + 1 for d in first)])
