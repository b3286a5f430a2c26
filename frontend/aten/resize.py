"""Padding and interpolation, as lookups with computed indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import sympy
from torch.utils._sympy import functions as tsf

from dhlo.errors import CompileError
from dhlo.frontend.aten.resize_bytes import byte_taps, resized_bytes
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import LOWERINGS, lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import movement as mv
from dhlo.ir.symbols import as_expr
from dhlo.ir.types import DType

Taps: TypeAlias = list[tuple[Value, Value | None]]  # for each element of a resized dim: what it reads, and the weights if not 1


# ---------------------------------------------------------------------------------------------------- padding
def amounts(b: OpBuilder, x: Value, pad: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Amounts before and after every dim; PyTorch lists the last dim first."""
    low: list[Any] = [as_expr(0)] * b.rank(x)
    high: list[Any] = [as_expr(0)] * b.rank(x)
    for i in range(len(pad) // 2):
        low[-1 - i], high[-1 - i] = as_expr(pad[2 * i]), as_expr(pad[2 * i + 1])
    return low, high


@lowers(A.constant_pad_nd.default)
def _constant_pad(b: OpBuilder, x: Value, pad: Sequence[Any], value: Any = 0) -> Value:
    low, high = amounts(b, x, pad)
    for d, (lo, hi) in enumerate(zip(low, high, strict=True)):
        x, low[d], high[d] = _cropped(b, x, d, lo, hi)
        for p in (low[d], high[d]):
            b.require(sympy.Ge(p, 0), "an amount of padding is negative")
    return b.pad(x, low, high, float(value or 0))


def _cropped(b: OpBuilder, x: Value, d: int, low: Any, high: Any) -> tuple[Value, Any, Any]:
    """x without what negative amounts cut off, and what is left of the amounts."""
    cut = [-p if b.dims.nonnegative(-p) else as_expr(0) for p in (low, high)]
    if cut != [0, 0]:
        x = b.slice(x, d, cut[0], b.size(b.shape(x)[d] - cut[0] - cut[1]))
    return x, low + cut[0], high + cut[1]


@lowers(A.pad.default)
def _pad(b: OpBuilder, x: Value, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Value:
    if mode == "constant":
        return _constant_pad(b, x, pad, value or 0)
    low, high = amounts(b, x, pad)
    parts = [x]  # side by side along the last dim, which comes first: elsewhere places of rows are looked up, in each of them
    last = b.rank(x) - 1
    for d in (last, *range(last)):
        lo, hi = low[d], high[d]
        if mode == "circular":  # what is cut off isn't repeated
            cropped = [_cropped(b, x, d, lo, hi) for x in parts]
            parts, (_, lo, hi) = [x for x, *_ in cropped], cropped[0]
        n = b.shape(parts[0])[d]
        for p in (lo, hi) if mode == "circular" else ():
            b.require(sympy.Le(p, n), "padding would wrap around more than once")
        if (lo, hi) == (0, 0):
            continue
        if d < last or not (b.dims.nonnegative(lo) and b.dims.nonnegative(hi)):  # rows; what may cut something off
            places = padded_places(b, n, -lo, lo + n + hi, mode)
            parts = [b.take(x, [places], [d], d) for x in parts]
        else:  # along vectors, which copy what isn't repeated as it lies
            before, after = _ends(b, parts[0], lo, hi, mode)
            parts = [*([before] if lo != 0 else []), *parts, *([after] if hi != 0 else [])]
    return parts[0] if len(parts) == 1 else b.concat(parts, last)


def _ends(b: OpBuilder, x: Value, low: Any, high: Any, mode: str) -> tuple[Value, Value]:
    """What stands before and after x along its last dim, as views of it."""
    d = b.rank(x) - 1
    n = b.shape(x)[d]
    if mode == "reflect":
        for p in (low, high):
            b.require(sympy.Lt(p, n), "padding must be less than what it reflects")
        before, after = b.slice(x, d, 1, low), b.slice(x, d, n - 1 - high, high)
        return b.op(mv.Reverse, [before], {"dims": [d]}), b.op(mv.Reverse, [after], {"dims": [d]})
    if mode == "replicate":
        b.require(sympy.Ge(n, 1), "there is nothing to repeat")
        first, last = (b.slice(x, d, at, 1) for at in (0, n - 1))
        return b.expand(first, [*b.shape(x)[:d], low]), b.expand(last, [*b.shape(x)[:d], high])
    if mode == "circular":
        return b.slice(x, d, n - low, low), b.slice(x, d, 0, high)
    raise CompileError(f"unknown padding mode {mode!r}")


def padded_places(b: OpBuilder, n: sympy.Expr, start: Any, count: Any, mode: str) -> Value:
    """Which of n elements each of `count` elements of the padded dim repeats, from number `start` on, the first of them being 0."""
    i = b.iota([count], 0, "i64", start=start)
    if mode == "reflect":
        return b.sub(n - 1, b.op(ew.Abs, [b.sub(n - 1, b.op(ew.Abs, [i]))]))
    if mode == "replicate":
        return b.minimum(b.maximum(i, 0), n - 1)
    if mode == "circular":
        return b.remainder(i, n)
    raise CompileError(f"unknown padding mode {mode!r}")


def _register_pads() -> None:
    def rule(mode: str) -> Any:
        return lambda b, x, pad: _pad(b, x, pad, mode)

    for n in (1, 2, 3):
        lowers(getattr(A, f"reflection_pad{n}d").default)(rule("reflect"))
        lowers(getattr(A, f"replication_pad{n}d").default)(rule("replicate"))


_register_pads()


# ---------------------------------------------------------------------------------------------------- interpolation
def _sizes(b: OpBuilder, x: Value, size: Any, factors: Any, n: int) -> list[tuple[Any, Any]]:
    """(result size, given factor or None) of each trailing spatial dim."""
    spatial = b.shape(x)[-n:]
    if size is not None:
        given = factors if factors is not None else [None] * n
        return [(as_expr(s), f) for s, f in zip(size, given, strict=True)]
    out = []
    for s, f in zip(spatial, factors, strict=True):
        exact = float(f).is_integer()
        out.append((s * int(f) if exact else b.size(tsf.TruncToInt(sympy.Mul(tsf.ToFloat(s), sympy.Float(f)))), f))
    return out


def given(factors: Sequence[Any]) -> Sequence[Any] | None:
    """The factors of all dims, if they are given."""
    return factors if factors and None not in factors else None


def _scale(n: sympy.Expr, out: sympy.Expr, factor: Any, corners: bool) -> Operand:
    """Source steps for one step of the result, as ATen computes it (area_pixel_compute_scale)."""
    if corners:
        if out.is_number and n.is_number:
            return float(n - 1) / float(out - 1) if out > 1 else 0.0
        return sympy.Piecewise((tsf.IntTrueDiv(n - 1, sympy.Max(out - 1, 1)), out > 1), (sympy.Float(0.0), True))
    if factor is not None:
        return 1.0 / float(factor)
    if out.is_number and n.is_number:
        return float(n) / float(out)
    return tsf.IntTrueDiv(n, out)


def _positions(b: OpBuilder, out: sympy.Expr, scale: Operand, corners: bool, dtype: DType, clamp: bool) -> Value:
    """Source coordinates of the result's elements along a dim."""
    i = b.iota([out], 0, dtype)
    if corners:
        return b.mul(i, scale)
    pos = b.sub(b.mul(b.add(i, 0.5), scale), 0.5)
    return b.maximum(pos, 0.0) if clamp else pos


def along(b: OpBuilder, w: Value, rank: int, d: int) -> Value:
    """A vector laid along dim d."""
    return b.reshape(w, [b.shape(w)[0] if i == d else 1 for i in range(rank)])


def nearest_taps(exact: bool) -> Callable[..., Taps]:
    """The element below the place, in single precision; `exact`: below the middle's place. Otherwise a size that is the same or
    twice as large tells more than a given factor, as in ATen's nearest_idx."""

    def find(b: OpBuilder, own: sympy.Expr, out: sympy.Expr, factor: Any, corners: bool, dtype: DType) -> Taps:
        i = b.iota([out], 0, "f32")
        scale = _scale(own, out, factor, corners)
        if factor is not None and not exact:
            whole = [(sympy.Float(s), sympy.Eq(out, n)) for s, n in ((1.0, own), (0.5, 2 * own))]
            step = sympy.Piecewise(*whole, (sympy.Float(scale), True))
            scale = float(step) if step.is_number else step
        pos = b.mul(b.add(i, 0.5) if exact else i, scale)
        return [(b.minimum(b.convert(b.op(ew.Floor, [pos]), "i64"), own - 1), None)]

    return find


def linear_taps(b: OpBuilder, own: sympy.Expr, out: sympy.Expr, factor: Any, corners: bool, dtype: DType) -> Taps:
    """Of a size that stays each element, whatever the factor, and nothing of itself, which counts where that isn't finite."""
    if own == out:
        i = b.iota([out], 0, "i64")
        return [(i, b.full([out], 1.0, dtype)), (i, b.full([out], 0.0, dtype))]
    stays, scale = sympy.Eq(own, out), _scale(own, out, factor, corners)
    if factor is not None and not corners:
        step = sympy.Piecewise((sympy.Float(1.0), stays), (sympy.Float(scale), True))
        scale = float(step) if step.is_number else step
    pos = _positions(b, out, scale, corners, dtype, clamp=True)
    low = b.minimum(b.convert(b.op(ew.Floor, [pos]), "i64"), own - 1)
    w = b.minimum(b.maximum(b.sub(pos, b.convert(low, dtype)), 0.0), 1.0)
    beyond = sympy.Piecewise((sympy.Integer(0), stays), (sympy.Integer(1), True))
    return [(low, b.sub(1.0, w)), (b.minimum(b.add(low, beyond), own - 1), w)]


def cubic_weights(b: OpBuilder, t: Value) -> list[Value]:
    """Weights of the four taps (Keys' kernel with a = -0.75)."""
    a = -0.75

    def near(x: Value) -> Value:
        return b.add(b.mul(b.mul(b.sub(b.mul(x, a + 2), a + 3), x), x), 1.0)

    def far(x: Value) -> Value:
        return b.sub(b.mul(b.add(b.mul(b.sub(b.mul(x, a), 5 * a), x), 8 * a), x), 4 * a)

    u = b.sub(1.0, t)
    return [far(b.add(t, 1.0)), near(t), near(u), far(b.add(u, 1.0))]


def cubic_slopes(b: OpBuilder, t: Value) -> list[Value]:
    """The derivatives of the weights."""
    a = -0.75

    def near(x: Value) -> Value:
        return b.mul(b.sub(b.mul(x, 3 * (a + 2)), 2 * (a + 3)), x)

    def far(x: Value) -> Value:
        return b.add(b.mul(b.sub(b.mul(x, 3 * a), 10 * a), x), 8 * a)

    u = b.sub(1.0, t)
    return [far(b.add(t, 1.0)), near(t), b.sub(0.0, near(u)), b.sub(0.0, far(b.add(u, 1.0)))]


def cubic_taps(b: OpBuilder, own: sympy.Expr, out: sympy.Expr, factor: Any, corners: bool, dtype: DType) -> Taps:
    pos = _positions(b, out, _scale(own, out, factor, corners), corners, dtype, clamp=False)
    floor = b.op(ew.Floor, [pos])
    base = b.convert(floor, "i64")
    at = [b.minimum(b.maximum(b.add(base, k - 1), 0), own - 1) for k in range(4)]
    return list(zip(at, cubic_weights(b, b.sub(pos, floor)), strict=True))


def _whole_times(own: sympy.Expr, out: sympy.Expr, factor: Any) -> int | None:
    """How many times as large a dim becomes, if that is a power of two, whose inverse is exact."""
    times = sympy.cancel(out / own) if own != 0 else sympy.Integer(0)
    if not times.is_Integer or times <= 0 or times & (times - 1) or factor is not None and float(factor) != int(times):
        return None
    return int(times)


def _resized(find: Callable[..., Taps], repeats: bool = False) -> Any:
    """Interpolation dim by dim: the sum of what the taps read, weighted; or, if it `repeats` elements, those."""

    def f(b: OpBuilder, x: Value, size: Any, corners: bool, factors: Any, n: int) -> Value:
        for d, (out, factor) in zip(range(b.rank(x) - n, b.rank(x)), _sizes(b, x, size, factors, n), strict=True):
            times = _whole_times(b.shape(x)[d], out, factor) if repeats else None
            if times is not None:
                x = LOWERINGS[A.repeat_interleave.self_int](b, x, times, d)
                continue
            terms = []
            for at, w in find(b, b.shape(x)[d], out, factor, corners, b.dtype(x)):
                read = b.take(x, [at], [d], d)
                terms.append(read if w is None else b.mul(read, along(b, w, b.rank(x), d)))
            x = reduce(b.add, terms)
        return x

    return f


def _triangle(b: OpBuilder, x: Value) -> Value:
    return b.maximum(b.sub(1.0, b.op(ew.Abs, [x])), 0.0)


def _keys(b: OpBuilder, x: Value) -> Value:
    """Keys' cubic kernel with a = -0.5."""
    x = b.op(ew.Abs, [x])
    near = b.add(b.mul(b.mul(b.sub(b.mul(x, 1.5), 2.5), x), x), 1.0)
    far = b.mul(b.sub(b.mul(b.add(b.mul(b.sub(x, 5.0), x), 8.0), x), 4.0), -0.5)
    return b.select(b.ew(ew.Lt, x, 1.0), near, b.select(b.ew(ew.Lt, x, 2.0), far, 0.0))


def _lanczos(b: OpBuilder, x: Value) -> Value:
    """sinc(x) sinc(x / 3) for |x| < 3."""

    def sinc(v: Value) -> Value:
        angle = b.mul(v, math.pi)
        return b.select(b.ew(ew.Eq, v, 0.0), 1.0, b.div(b.unary(ew.Sin, angle), angle))

    return b.select(b.ew(ew.Lt, b.op(ew.Abs, [x]), 3.0), b.mul(sinc(x), sinc(b.div(x, 3.0))), 0.0)


def kernel_taps(width: int, kernel: Any) -> Any:
    """The places [taps, out] that a kernel of `width` elements covers, stretched where the result is smaller; their weights; and
    which of them count."""

    def find(b: OpBuilder, own: sympy.Expr, out: sympy.Expr, factor: Any, corners: bool, dtype: DType) -> tuple[Value, ...]:
        scale = as_expr(_scale(own, out, factor, corners))
        whole = as_expr(_scale(own, out if out.is_number else sympy.Max(out, 1), factor, corners))
        # Rounding may find one tap more, at an end of the kernel, where it is 0.
        taps = as_expr(tsf.CeilToInt(width * sympy.Max(whole, 1.0)))
        stretch = b.maximum(b.full([], scale, dtype), 1.0)
        reach = b.mul(stretch, 0.5 * width)
        centre = b.mul(b.add(b.iota([1, out], 1, dtype), 0.5), scale)
        low = b.maximum(b.convert(b.add(b.sub(centre, reach), 0.5), "i64"), 0)
        high = b.minimum(b.convert(b.add(b.add(centre, reach), 0.5), "i64"), own)
        at = b.add(low, b.iota([taps, out], 0, "i64"))
        far = b.mul(b.add(b.sub(b.convert(at, dtype), centre), 0.5), b.div(1.0, stretch))
        inside = b.ew(ew.Lt, at, high)
        w = b.select(inside, kernel(b, far), 0.0)
        total = b.reduce(w, "sum", [0], keepdim=True)
        w = b.div(w, b.select(b.ew(ew.Eq, total, 0.0), 1.0, total))  # given factors may point beyond the end
        return b.minimum(at, own - 1), w, inside

    return find


def _antialiased(find: Any) -> Any:
    """Interpolation by stretched kernels (aten._upsample_*_aa)."""

    def f(b: OpBuilder, x: Value, size: Any, corners: bool, factors: Any, n: int) -> Value:
        for d, (out, factor) in zip(range(b.rank(x) - n, b.rank(x)), _sizes(b, x, size, factors, n), strict=True):
            at, w, inside = find(b, b.shape(x)[d], out, factor, corners, b.dtype(x))
            values = b.take(x, [at], [d], d)
            w, inside = (b.expand(v, b.shape(values), [d, d + 1]) for v in (w, inside))
            x = b.reduce(b.select(inside, b.mul(values, w), 0.0), "sum", [d])
        return x

    return f


ANTIALIASED = {"bilinear": kernel_taps(2, _triangle), "bicubic": kernel_taps(4, _keys), "lanczos": kernel_taps(6, _lanczos)}


def _register_upsampling() -> None:
    def nearest(n: int, exact: bool) -> Any:
        f = _resized(nearest_taps(exact), repeats=True)

        def vec(b: OpBuilder, x: Value, size: Any, factors: Any = None) -> Value:
            return f(b, x, size, False, factors, n)

        def default(b: OpBuilder, x: Value, size: Any, *factors: Any) -> Value:
            return f(b, x, size, False, given(factors), n)

        return vec, default

    def smooth(n: int, f: Any, of_bytes: Any = None) -> Any:
        def vec(b: OpBuilder, x: Value, size: Any, corners: bool, factors: Any = None) -> Value:
            if b.dtype(x).name == "ui8" and of_bytes is not None:
                return resized_bytes(b, x, _sizes(b, x, size, factors, n), corners, of_bytes)
            if not b.dtype(x).is_float:
                raise CompileError(
                    f"interpolation of {b.dtype(x)}, which PyTorch doesn't compute either", hint="convert to float32"
                )
            return b.in_f32(lambda v: f(b, v, size, corners, factors, n), x)

        def default(b: OpBuilder, x: Value, size: Any, corners: bool, *factors: Any) -> Value:
            return vec(b, x, size, corners, given(factors))

        return vec, default

    kinds = [(f"upsample_nearest{n}d", nearest(n, False)) for n in (1, 2, 3)]
    kinds += [(f"_upsample_nearest_exact{n}d", nearest(n, True)) for n in (1, 2, 3)]
    kinds += [
        ("upsample_linear1d", smooth(1, _resized(linear_taps))),
        ("upsample_bilinear2d", smooth(2, _resized(linear_taps), byte_taps(linear_taps))),
        ("upsample_trilinear3d", smooth(3, _resized(linear_taps))),
        ("upsample_bicubic2d", smooth(2, _resized(cubic_taps), byte_taps(cubic_taps))),
    ]
    kinds += [(f"_upsample_{name}2d_aa", smooth(2, _antialiased(find), find)) for name, find in ANTIALIASED.items()]
    for name, (vec, default) in kinds:
        lowers(getattr(A, name).vec)(vec)
        lowers(getattr(A, name).default)(default)


_register_upsampling()
