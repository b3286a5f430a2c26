"""Gradients of convolutions, average pooling and attention: operators that graphs of training call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dhlo.errors import CompileError
from dhlo.frontend.aten.contraction import attention_scores
from dhlo.frontend.aten.convolution import adaptive_pool, conv, many
from dhlo.frontend.aten.windows import few, shifted, windows
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import product


@lowers(A.threshold_backward.default)
def _threshold_backward(b: OpBuilder, grad: Value, x: Value, threshold: Any) -> Value:
    """Of the dtype that both have together."""
    return b.select(b.ew(ew.Le, x, threshold), 0, grad, dtype=b.result_type(grad, x))


@lowers(A.convolution_backward.default)
def _convolution_backward(
    b: OpBuilder,
    grad: Value,
    x: Value,
    w: Value,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    """The gradients of x, w and the bias, None for those that `output_mask` leaves out."""
    n = b.rank(w) - 2
    dtype, wide = b.dtype(x), b.wide_dtype(x)
    grad, x, w = (b.convert(v, wide) for v in (grad, x, w))
    where = many(stride, n), many(padding, n), many(dilation, n)
    dx = _grad_input(b, grad, x, w, *where, transposed, groups) if output_mask[0] else None
    dw = None
    if output_mask[1]:  # transposed, it is the result whose windows are summed
        dw = _grad_weight(b, x, grad, w, *where, groups) if transposed else _grad_weight(b, grad, x, w, *where, groups)
    dbias = b.reduce(grad, "sum", [d for d in range(n + 2) if d != 1]) if output_mask[2] else None
    return [None if v is None else b.convert(v, dtype) for v in (dx, dw, dbias)]


def _grad_input(
    b: OpBuilder,
    grad: Value,
    x: Value,
    w: Value,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    groups: int,
) -> Value:
    """The reverse of the convolution, which may reach beyond x: what the strides rounded away, or the output padding."""
    room = [0 if transposed else s - 1 for s in stride]
    dx = conv(b, grad, w, None, stride, padding, dilation, not transposed, room, groups)
    for d, size in enumerate(b.shape(x)[2:], 2):
        dx = b.slice(dx, d, 0, size)
    return dx


def _grad_weight(
    b: OpBuilder, small: Value, large: Value, w: Value, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Value:
    """Products of the elements of small [B, C, *out] with the windows of large [B, D, *spatial] at their places, summed over
    images and places: [C, D / groups, *kernel]."""
    (batch, channels, *out), (_, per_group, *kernel) = b.shape(small), b.shape(w)
    each = b.size(channels / groups)
    if per_group == 1 and few(kernel):  # a sum for each element of the kernel: there is nothing to share between channels
        small = b.reshape(small, [batch, groups, each, *out])
        taps = shifted(b, large, stride, padding, dilation, kernel, out)
        sums = [b.reduce(b.mul(small, b.unsqueeze(t, 2)), "sum", [0, *range(3, b.rank(small))]) for t in taps]
        return b.reshape(b.concat([b.unsqueeze(s, 2) for s in sums], 2), b.shape(w))
    columns = windows(b, b.swap(large, 0, 1), stride, padding, dilation, kernel, out, 1)
    columns = b.reshape(columns, [groups, per_group * product(kernel), batch * product(out)])
    small = b.reshape(b.swap(small, 0, 1), [groups, each, batch * product(out)])
    return b.reshape(b.swap(b.matmul(columns, b.swap(small, 1, 2)), 1, 2), b.shape(w))


# ---------------------------------------------------------------------------------------------------- attention
@lowers(A._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _flash_attention_backward(
    b: OpBuilder,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    logs: Value,
    dropout: float,
    causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> list[Value]:
    """The gradients of q, k and v [B, H, S, D]; the weights are computed again from the logarithms of their sums [B, H, S]."""
    if b.rank(logs) != 3:
        hint = "torch.export mixes up its results: export under sdpa_kernel(SDPBackend.MATH)"
        raise CompileError("the gradient of attention is not given the logarithms of sums", hint=hint)
    dtype = b.dtype(q)
    if dtype.bytes < 4:
        grad, q, k, v, out = (b.convert(x, "f32") for x in (grad, q, k, v, out))
    factor = b.unary(ew.Rsqrt, b.full([], b.shape(q)[3], b.dtype(q))) if scale is None else scale
    scores = attention_scores(b, q, k, attn_mask, causal=causal, scale=factor)
    weights = b.unary(ew.Exp, b.sub(scores, b.convert(b.unsqueeze(logs, 3), b.dtype(scores))))
    weights = b.select(b.ew(ew.Eq, scores, -math.inf), 0.0, weights)  # where a row may attend to nothing, its sum is 0
    through = b.sub(b.matmul(grad, b.swap(v, 2, 3)), b.reduce(b.mul(grad, out), "sum", [3], keepdim=True))
    through = b.mul(b.mul(weights, through), factor)
    found = b.matmul(through, k), b.matmul(b.swap(through, 2, 3), q), b.matmul(b.swap(weights, 2, 3), grad)
    return [b.convert(x, dtype) for x in found]


# ---------------------------------------------------------------------------------------------------- pooling
def _average_pool(n: int) -> Any:
    def rule(
        b: OpBuilder,
        grad: Value,
        x: Value,
        window: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_pad: bool,
        divisor: int | None,
    ) -> Value:
        window = many(window, n)
        places = [window, many(stride, n) if stride else window, many(padding, n)]
        dims = list(zip(range(b.rank(x) - n, b.rank(x)), b.shape(x)[-n:], *places, strict=True))
        if not divisor and not ceil_mode and (count_pad or not any(places[2])):
            divisor = math.prod(window)  # all windows are whole

        def f(g: Value) -> Value:
            g = b.div(g, divisor or _counts(b, g, dims, count_pad))
            for dim in dims:
                g = _spread(b, g, *dim)
            return g

        return b.in_f32(f, grad)

    return rule


def _counts(b: OpBuilder, grad: Value, dims: Sequence[Any], count_pad: bool) -> Value:
    """How many elements each window combines, shaped to be broadcast to grad."""
    count: Operand = 1
    for d, size, window, stride, padding in dims:
        start = b.iota([b.shape(grad)[d]], 0, "i64", start=-padding, step=stride)
        end = b.minimum(b.add(start, window), size + padding if count_pad else size)
        taps = b.sub(end, start if count_pad else b.maximum(start, 0))
        count = b.mul(b.reshape(taps, [*b.shape(taps), *[1] * (b.rank(grad) - 1 - d)]), count)
    return b.convert(count, b.dtype(grad))


def _spread(b: OpBuilder, grad: Value, d: int, size: Any, window: int, stride: int, padding: int) -> Value:
    """The sum over all windows that an element of the pooled dim lies in."""
    overlap, count = -(-window // stride), b.shape(grad)[d]
    place = b.iota([size, overlap], 0, "i64", start=padding)
    at = b.sub(b.floordiv(place, stride), b.iota([size, overlap], 1, "i64"))
    inside = b.ew(ew.And, b.ew(ew.Ge, at, 0), b.ew(ew.Lt, at, count))
    inside = b.ew(ew.And, inside, b.ew(ew.Lt, b.sub(place, b.mul(at, stride)), window))
    y = b.take(grad, [b.maximum(b.minimum(at, count - 1), 0)], [d], d)
    y = b.select(b.expand(inside, b.shape(y), [d, d + 1]), y, 0, dtype=b.dtype(y))
    return b.squeeze(y, [d + 1]) if overlap == 1 else b.reduce(y, "sum", [d + 1])


def _adaptive_average_pool(n: int) -> Any:
    def rule(b: OpBuilder, grad: Value, x: Value) -> Value:
        """The windows that an element lies in are the window of adaptive pooling from the pooled size to x's."""
        sizes = list(zip(range(b.rank(x) - n, b.rank(x)), b.shape(x)[-n:], b.shape(grad)[-n:], strict=True))

        def f(g: Value) -> Value:
            for d, size, pooled in sizes:
                g = b.div(g, _lengths(b, g, d, size, pooled))
            y = adaptive_pool(b, g, "avg", n, [size for _, size, _ in sizes])
            for d, size, pooled in sizes:
                y = b.mul(y, _lengths(b, y, d, pooled, size))
            return y

        return b.in_f32(f, grad)

    return rule


def _lengths(b: OpBuilder, like: Value, d: int, size: Any, pooled: Any) -> Value:
    """The lengths of adaptive pooling's windows from `size` to `pooled` elements, shaped to be broadcast in dim d of `like`."""
    i = b.iota([pooled], 0, "i64")
    start = b.floordiv(b.mul(i, size), pooled)
    end = b.floordiv(b.add(b.mul(b.add(i, 1), size), pooled - 1), pooled)
    return b.reshape(b.convert(b.sub(end, start), b.dtype(like)), [pooled, *[1] * (b.rank(like) - 1 - d)])


for _n in (2, 3):
    lowers(getattr(A, f"avg_pool{_n}d_backward").default)(_average_pool(_n))
    lowers(getattr(A, f"_adaptive_avg_pool{_n}d_backward").default)(_adaptive_average_pool(_n))
