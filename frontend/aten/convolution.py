"""Convolutions and pooling."""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv

from dhlo.frontend.aten.windows import conv_by_columns, transposed_by_columns
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import compute
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import is_static
from dhlo.ir.types import TensorType


def many(x: Any, n: int) -> list[int]:
    """One number a spatial dim."""
    x = list(x) if isinstance(x, list | tuple) else [x]
    return [int(v) for v in (x * n if len(x) == 1 else x)]


def conv(
    b: OpBuilder,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Value:
    n = b.rank(w) - 2
    stride, padding, dilation, output_padding = (many(v, n) for v in (stride, padding, dilation, output_padding))
    if b.rank(x) == n + 1:
        return b.squeeze(conv(b, b.unsqueeze(x, 0), w, bias, stride, padding, dilation, transposed, output_padding, groups), [0])
    if b.dtype(x).name in ("f16", "bf16"):
        wx, ww, wb = (None if v is None else b.convert(v, "f32") for v in (x, w, bias))
        y = conv(b, wx, ww, wb, stride, padding, dilation, transposed, output_padding, groups)
        return b.convert(y, b.dtype(x))
    batch, channels, *spatial = b.shape(x)
    ws = b.shape(w)
    b.dims.same(channels, ws[0] if transposed else ws[1] * groups)
    if transposed:
        out = [
            (s - 1) * st - 2 * p + d * (k - 1) + op + 1
            for s, st, p, d, k, op in zip(spatial, stride, padding, dilation, ws[2:], output_padding, strict=True)
        ]
    else:
        out = [
            FloorDiv(s + 2 * p - d * (k - 1) - 1, st) + 1
            for s, st, p, d, k in zip(spatial, stride, padding, dilation, ws[2:], strict=True)
        ]
    if not b.dtype(x).is_float or not all(map(is_static, (channels, *ws))):
        columns = transposed_by_columns if transposed else conv_by_columns
        y = columns(b, x, w, stride, padding, dilation, out, groups)
        return y if bias is None else b.add(y, b.expand(b.convert(bias, b.dtype(y)), b.shape(y), [1]))
    y = b.op(
        compute.Conv,
        [x, b.convert(w, b.dtype(x))],
        {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "transposed": bool(transposed),
            "output_padding": output_padding,
            "groups": int(groups),
        },
        [TensorType.of(b.dtype(x), [batch, ws[1] * groups if transposed else ws[0], *out])],
    )
    return y if bias is None else b.add(y, b.expand(b.convert(bias, b.dtype(y)), b.shape(y), [1]))


@lowers(A.convolution.default)
def _convolution(
    b: OpBuilder,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Value:
    return conv(b, x, w, bias, stride, padding, dilation, transposed, output_padding, groups)


@lowers(A._convolution.default, A._convolution.deprecated)
def _convolution_with_flags(b: OpBuilder, *args: Any, **_: Any) -> Value:
    """What follows the groups says how PyTorch is to compute it."""
    return conv(b, *args[:9])


@lowers(A.conv1d.default, A.conv2d.default, A.conv3d.default)
def _convnd(
    b: OpBuilder,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    return conv(b, x, w, bias, stride, padding, dilation, False, 0, groups)


@lowers(A.conv_tbc.default)
def _conv_tbc(b: OpBuilder, x: Value, w: Value, bias: Value, padding: int = 0) -> Value:
    """Of x [T, B, I] and w [K, I, O]."""
    y = conv(b, b.transpose(x, [1, 2, 0]), b.transpose(w, [2, 1, 0]), bias, 1, padding, 1, False, 0, 1)
    return b.transpose(y, [2, 0, 1])


@lowers(A.conv1d.padding, A.conv2d.padding, A.conv3d.padding)
def _conv_padding(
    b: OpBuilder,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: str = "valid",
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    n = b.rank(w) - 2
    if padding == "valid":
        return conv(b, x, w, bias, stride, 0, dilation, False, 0, groups)
    total = [d * (k - 1) for d, k in zip(many(dilation, n), b.shape(w)[2:], strict=True)]
    if all(map(is_static, total)) and not any(t % 2 for t in total):
        return conv(b, x, w, bias, stride, [int(t) // 2 for t in total], dilation, False, 0, groups)
    lead, low = [0] * (b.rank(x) - n), [FloorDiv(t, 2) for t in total]
    x = b.pad(x, [*lead, *low], [*lead, *(t - before for t, before in zip(total, low, strict=True))], 0.0)  # one more at the end
    return conv(b, x, w, bias, stride, 0, dilation, False, 0, groups)


@lowers(A.conv_transpose1d.default, A.conv_transpose2d.input, A.conv_transpose3d.input)
def _conv_transpose(
    b: OpBuilder,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Value:
    return conv(b, x, w, bias, stride, padding, dilation, True, output_padding, groups)


# ---------------------------------------------------------------------------------------------------- pooling
def pool(
    b: OpBuilder,
    x: Value,
    how: str,
    n: int,
    window: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    count_pad: bool = True,
    divisor: int | None = None,
) -> Value:
    window = many(window, n)
    stride = many(stride, n) if stride is not None and stride != [] else window
    padding, dilation = many(padding, n), many(dilation, n)
    if b.rank(x) == n + 1:
        return b.squeeze(pool(b, b.unsqueeze(x, 0), how, n, window, stride, padding, dilation, ceil_mode, count_pad, divisor), [0])
    out = []
    for s, k, st, p, d in zip(b.shape(x)[-n:], window, stride, padding, dilation, strict=True):
        room = s + 2 * p - d * (k - 1) - 1
        if ceil_mode:  # the last window must start inside the input or its left padding
            out.append(b.size(sympy.Min(FloorDiv(room + st - 1, st) + 1, FloorDiv(s + p - 1, st) + 1)))
        else:
            out.append(FloorDiv(room, st) + 1)
    if not b.dtype(x).is_float and how == "avg":
        return _average_integers(b, x, out, window, stride, padding, dilation, count_pad, divisor)
    return b.op(
        compute.Pool,
        [x],
        {
            "how": how,
            "window": window,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "count_pad": bool(count_pad),
            "divisor": int(divisor or 0),
        },
        [TensorType.of(b.dtype(x), [*b.shape(x)[:-n], *out])],
    )


def _average_integers(
    b: OpBuilder,
    x: Value,
    out: list[Any],
    window: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    count_pad: bool,
    divisor: int | None,
) -> Value:
    """Averages of integers, which have no kernel of their own: all elements of all windows, summed. They are rounded to zero."""
    first, dtype = b.rank(x) - len(out), b.dtype(x)
    windows = [first + 2 * k for k in range(len(out))]
    counts = []
    for dim, o, w, s, p, d in zip(windows, out, window, stride, padding, dilation, strict=True):
        n = b.shape(x)[dim]
        at = b.add(b.iota([o, w], 0, "i64", start=-p, step=s), b.iota([o, w], 1, "i64", step=d))
        inside = b.ew(ew.And, b.ew(ew.Ge, at, 0), b.ew(ew.Lt, at, n))
        counted = b.ew(ew.Lt, at, n + p) if count_pad else inside
        counts.append(b.reduce(b.convert(counted, "i64"), "sum", [1]))
        x = b.take(x, [b.minimum(b.maximum(at, 0), n - 1)], [dim], dim)
        x = b.select(b.expand(inside, b.shape(x), [dim, dim + 1]), x, 0, dtype=dtype)
    taps = [d + 1 for d in windows]
    total = b.reduce(b.convert(x, "i64"), "sum", taps)
    count: Operand = divisor
    if not divisor:
        count = b.full([], 1, "i64")
        for k, c in enumerate(counts):
            count = b.mul(count, b.reshape(c, [*b.shape(c), *[1] * (len(out) - 1 - k)]))
    return b.convert(b.ew(ew.TruncDiv, total, count), dtype)


def adaptive_pool(b: OpBuilder, x: Value, how: str, n: int, size: Any) -> Value:
    """Max or avg over n trailing dims, cut into as many windows as `size` says; a dim without a size stays."""
    given = list(size) if isinstance(size, list | tuple) else [size]
    size = [own if s is None else s for s, own in zip(given, b.shape(x)[-n:], strict=True)]
    t = TensorType.of(b.dtype(x), [*b.shape(x)[:-n], *size])
    return b.op(compute.AdaptivePool, [x], {"how": how, "spatial": n}, [t])


def _register_pools() -> None:
    def max_pool(n: int) -> Any:
        def rule(
            b: OpBuilder,
            x: Value,
            window: Any,
            stride: Any = None,
            padding: Any = 0,
            dilation: Any = 1,
            ceil_mode: bool = False,
        ) -> Value:
            return pool(b, x, "max", n, window, stride, padding, dilation, ceil_mode)

        return rule

    def avg_pool(n: int) -> Any:
        def rule(
            b: OpBuilder,
            x: Value,
            window: Any,
            stride: Any = None,
            padding: Any = 0,
            ceil_mode: bool = False,
            count_pad: bool = True,
            divisor: int | None = None,
        ) -> Value:
            whole = b.dtype(x).is_int
            wide, by = b.convert(x, "f64") if whole else x, None if divisor is None else abs(divisor)
            y = pool(b, wide, "avg", n, window, stride, padding, 1, ceil_mode, count_pad, by)
            if divisor is not None and divisor < 0:
                y = b.op(ew.Neg, [y])
            return b.convert(y, b.dtype(x)) if whole else y  # integers are divided towards 0

        return rule

    def adaptive(n: int) -> Any:
        def rule(b: OpBuilder, x: Value, size: Any) -> Value:
            return adaptive_pool(b, x, "avg", n, size)

        return rule

    for n in (1, 2, 3):
        lowers(getattr(A, f"max_pool{n}d").default)(max_pool(n))
        lowers(getattr(A, f"avg_pool{n}d").default)(avg_pool(n))
        lowers(getattr(A, f"adaptive_avg_pool{n}d").default)(adaptive(n))
    lowers(A._adaptive_avg_pool2d.default)(adaptive(2))
    lowers(A._adaptive_avg_pool3d.default)(adaptive(3))


_register_pools()
