"""Convolutions and pooling."""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from dhlo.dialect import static
from dhlo.errors import CompileError
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.registry import lowers
from dhlo.ops import compute
from dhlo.ops import elementwise as ew
from dhlo.types import TensorType

A: Any = torch.ops.aten


def _many(x: Any, n: int) -> list[int]:
    """One number a spatial dim."""
    x = list(x) if isinstance(x, list | tuple) else [x]
    return [int(v) for v in (x * n if len(x) == 1 else x)]


def _conv(
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
    stride, padding, dilation, output_padding = (_many(v, n) for v in (stride, padding, dilation, output_padding))
    if b.rank(x) == n + 1:
        return b.squeeze(
            _conv(b, b.unsqueeze(x, 0), w, bias, stride, padding, dilation, transposed, output_padding, groups), [0]
        )
    batch, channels, *spatial = b.shape(x)
    ws = [static(s) for s in b.shape(w)]
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
    return _conv(b, x, w, bias, stride, padding, dilation, transposed, output_padding, groups)


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
    return _conv(b, x, w, bias, stride, padding, dilation, False, 0, groups)


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
        return _conv(b, x, w, bias, stride, 0, dilation, False, 0, groups)
    total = [d * (static(k) - 1) for d, k in zip(_many(dilation, n), b.shape(w)[2:], strict=True)]
    if any(t % 2 for t in total):  # one more at the end
        lead = b.rank(x) - n
        x = b.pad(x, [0] * b.rank(x), [*[0] * lead, *[t % 2 for t in total]], 0.0)
    return _conv(b, x, w, bias, stride, [t // 2 for t in total], dilation, False, 0, groups)


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
    return _conv(b, x, w, bias, stride, padding, dilation, True, output_padding, groups)


# ---------------------------------------------------------------------------------------------------- pooling
def _pool(
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
    window = _many(window, n)
    stride = _many(stride, n) if stride is not None and stride != [] else window
    padding, dilation = _many(padding, n), _many(dilation, n)
    if b.rank(x) == n + 1:
        return b.squeeze(
            _pool(b, b.unsqueeze(x, 0), how, n, window, stride, padding, dilation, ceil_mode, count_pad, divisor), [0]
        )
    out = []
    for s, k, st, p, d in zip(b.shape(x)[-n:], window, stride, padding, dilation, strict=True):
        room = s + 2 * p - d * (k - 1) - 1
        if ceil_mode:  # the last window must start inside the input or its left padding
            out.append(b.size(sympy.Min(FloorDiv(room + st - 1, st) + 1, FloorDiv(s + p - 1, st) + 1)))
        else:
            out.append(FloorDiv(room, st) + 1)
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
            return _pool(b, x, "max", n, window, stride, padding, dilation, ceil_mode)

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
            return _pool(b, x, "avg", n, window, stride, padding, 1, ceil_mode, count_pad, divisor)

        return rule

    def adaptive(n: int, how: str) -> Any:
        def rule(b: OpBuilder, x: Value, size: Any) -> Any:
            size = list(size) if isinstance(size, list | tuple) else [size]
            t = TensorType.of(b.dtype(x), [*b.shape(x)[:-n], *size])
            y = b.op(compute.AdaptivePool, [x], {"how": how, "spatial": n}, [t])
            return y if how == "avg" else [y, _no_indices(b, y)]

        return rule

    for n in (1, 2, 3):
        lowers(getattr(A, f"max_pool{n}d").default)(max_pool(n))
        lowers(getattr(A, f"avg_pool{n}d").default)(avg_pool(n))
        lowers(getattr(A, f"adaptive_avg_pool{n}d").default)(adaptive(n, "avg"))
        lowers(getattr(A, f"adaptive_max_pool{n}d").default)(adaptive(n, "max"))
    lowers(A._adaptive_avg_pool2d.default)(adaptive(2, "avg"))
    lowers(A._adaptive_avg_pool3d.default)(adaptive(3, "avg"))


def _no_indices(b: OpBuilder, y: Value) -> Value | None:
    """Stands for the indices of a pool that nobody reads."""
    if any(u.target is operator.getitem and u.args[1] == 1 and u.users for u in b.node.users):
        raise CompileError(
            "indices of adaptive max pooling are not supported", hint="use max_pool2d with return_indices"
        )
    return None


_register_pools()


@lowers(A.max_pool2d_with_indices.default)
def _max_pool_with_indices(
    b: OpBuilder,
    x: Value,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> list[Value]:
    """Values by the pool; positions (row * width + column) of the first largest element of each window, looked up
    apart."""
    values = _pool(b, x, "max", 2, window, stride, padding, dilation, ceil_mode)
    if not any(u.target is operator.getitem and u.args[1] == 1 and u.users for u in b.node.users):
        return [values, b.full(b.shape(values), 0, "i64")]
    window = _many(window, 2)
    steps = _many(stride, 2) if stride else window
    pads, gaps = _many(padding, 2), _many(dilation, 2)
    rank, patches, places = b.rank(x), x, []
    low = float("-inf") if b.dtype(x).is_float else torch.iinfo(b.dtype(x).torch).min
    for k in range(2):  # [.., oh, kh, ow, kw]: every element of every window
        d = rank - 2 + 2 * k
        n, out = b.shape(x)[rank - 2 + k], b.shape(values)[rank - 2 + k]
        at = b.add(
            b.iota([out, window[k]], 0, "i64", start=-pads[k], step=steps[k]),
            b.iota([out, window[k]], 1, "i64", step=gaps[k]),
        )
        inside = b.ew(ew.And, b.ew(ew.Ge, at, 0), b.ew(ew.Lt, at, n))
        patches = b.take(patches, [b.minimum(b.maximum(at, 0), n - 1)], [d], d)
        shape = b.shape(patches)
        patches = b.select(b.expand(inside, shape, [d, d + 1]), patches, low, dtype=b.dtype(x))
        places.append(at)
    lead = list(range(rank - 2))
    patches = b.transpose(patches, [*lead, rank - 2, rank, rank - 1, rank + 1])
    oh, ow = b.shape(values)[-2:]
    flat = b.reshape(patches, [*b.shape(patches)[:-2], window[0] * window[1]])
    best = b.op(compute.ArgReduce, [flat], {"how": "max", "dim": rank})
    grid = [oh, ow, window[0], window[1]]
    rows, cols = b.expand(places[0], grid, [0, 2]), b.expand(places[1], grid, [1, 3])
    table = b.reshape(b.add(b.mul(rows, b.shape(x)[-1]), cols), [oh, ow, window[0] * window[1]])
    index = [b.iota(b.shape(best), rank - 2, "i64"), b.iota(b.shape(best), rank - 1, "i64"), best]
    return [values, b.take(table, index, [0, 1, 2], 0)]
