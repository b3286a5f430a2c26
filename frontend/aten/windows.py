"""Windows of tensors, and convolutions as matrix products with them, for what their kernels don't take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import Any

from torch.utils._sympy.functions import FloorDiv

from dhlo.frontend.aten.control import loop
from dhlo.frontend.builder import OpBuilder, Operand, Value
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
    """A transposed convolution as products with what the outputs read of the input, for what its kernels don't take.

    Outputs that are congruent modulo the stride, a phase, meet the same elements of the kernel: every so many from a first one on.
    Phases are a dim of the product, so that none is made with zeros between the elements of the input."""
    (batch, channels), (_, per_group, *kernel) = b.shape(x)[:2], b.shape(w)
    depth, dims = b.size(channels / groups), range(len(out))
    common = [gcd(s, d) for s, d in zip(stride, dilation, strict=True)]
    steps = [s // g for s, g in zip(stride, common, strict=True)]
    counts = [FloorDiv(k + n - 1, n) for k, n in zip(kernel, steps, strict=True)]  # elements that a phase meets, at most
    across = [FloorDiv(o + s - 1, s) for o, s in zip(out, stride, strict=True)]  # outputs of a phase

    def met(d: int, grid: list[Any], number: Operand) -> tuple[Value, Value, Value]:
        """Along a dim, of each phase, the first of `grid`: the position it has in the padded input, the numbered element of the
        kernel that it meets, and whether there is one."""
        far = b.iota(grid, 0, "i64", padding[d])
        first = b.mul(b.floordiv(far, common[d]), pow(dilation[d] // common[d], -1, steps[d]))
        tap = b.add(b.remainder(first, steps[d]), b.mul(number, steps[d]))
        fits = b.ew(ew.And, b.ew(ew.Eq, b.remainder(far, common[d]), 0), b.ew(ew.Lt, tap, kernel[d]))
        return far, tap, fits

    def read(d: int, grid: list[Any], number: Operand) -> tuple[Value, Value]:
        """Which place of the input an output reads for it, by its number in the phase, the last of `grid`, and whether it does."""
        far, tap, fits = met(d, grid, number)
        at = b.floordiv(b.sub(far, b.mul(tap, dilation[d])), stride[d])  # exact where there is one
        return b.add(at, b.iota(grid, len(grid) - 1, "i64")), fits

    def one(numbers: list[Value]) -> Value:
        y, v = x, w
        for d in dims:
            grid, last = [stride[d], across[d]], d == dims[-1]
            if last:
                grid.insert(1, counts[d])
            at, fits = read(d, grid, b.iota(grid, 1, "i64") if last else numbers[d])
            y = _look_up(b, y, [at], [2 + 2 * d], 2 + 2 * d, fits)
            _, tap, fits = met(d, grid[:-1], b.iota(grid[:-1], 1, "i64") if last else numbers[d])
            v = _look_up(b, v, [tap], [2 + d], 2 + d, fits)
        end = 2 * len(dims) + 1  # y is [batch, channels, phases, outputs of a phase, .., phases, elements, outputs of a phase]
        y = b.transpose(y, [0, *range(2, end, 2), 1, end, *range(3, end, 2), end + 1])
        y = b.reshape(y, [batch, prod(stride), groups, depth * counts[-1], product(across)])
        v = b.reshape(v, [groups, depth, per_group, prod(stride), counts[-1]])
        v = b.reshape(b.transpose(v, [3, 0, 2, 1, 4]), [prod(stride), groups, per_group, depth * counts[-1]])
        return b.matmul(b.expand(v, [batch, *b.shape(v)]), y)

    result = TensorType.of(b.dtype(x), [batch, prod(stride), groups, per_group, product(across)])
    y = b.reshape(_sum_over_rows(b, counts, result, one), [batch, *stride, groups * per_group, *across])
    first = len(dims) + 1
    y = b.transpose(y, [0, first, *(k for d in dims for k in (first + 1 + d, 1 + d))])
    y = b.reshape(y, [batch, groups * per_group, *(n * s for n, s in zip(across, stride, strict=True))])
    for d, size in enumerate(out, 2):
        y = b.slice(y, d, 0, size)
    return y


def _sum_over_rows(b: OpBuilder, kernel: Sequence[Any], result: TensorType, one: Callable[[list[Value]], Value]) -> Value:
    """The sum of `one(positions)` over all positions in a kernel's dims but the last, in a loop: what one row of the kernel needs
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
