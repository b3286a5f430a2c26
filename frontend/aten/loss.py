"""Loss functions."""

from __future__ import annotations

import torch

from dhlo.errors import CompileError
from dhlo.frontend.aten import activation, contraction  # noqa: F401  (whose rules these are made of)
from dhlo.frontend.aten.indexing import gather
from dhlo.frontend.aten.reduction import mean
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import LOWERINGS, lowers
from dhlo.ir.ops import elementwise as ew


def _reduced(b: OpBuilder, loss: Value, how: int) -> Value:
    """Reduction of a loss: 0 none, 1 mean, 2 sum."""
    dims = list(range(b.rank(loss)))
    return loss if how == 0 else mean(b, loss, dims, False) if how == 1 else b.reduce(loss, "sum", dims)


@lowers(A.mse_loss.default)
def _mse_loss(b: OpBuilder, x: Value, y: Value, how: int = 1) -> Value:
    d = b.sub(x, y)
    return _reduced(b, b.mul(d, d), how)


@lowers(A.l1_loss.default)
def _l1_loss(b: OpBuilder, x: Value, y: Value, how: int = 1) -> Value:
    return _reduced(b, b.op(ew.Abs, [b.sub(x, y)]), how)


@lowers(A.smooth_l1_loss.default)
def _smooth_l1_loss(b: OpBuilder, x: Value, y: Value, how: int = 1, beta: float = 1.0) -> Value:
    d = b.op(ew.Abs, [b.sub(x, y)])
    if beta == 0:
        return _reduced(b, d, how)
    near = b.div(b.mul(b.mul(d, d), 0.5), beta)
    return _reduced(b, b.select(b.ew(ew.Lt, d, beta), near, b.sub(d, 0.5 * beta)), how)


@lowers(A.huber_loss.default)
def _huber_loss(b: OpBuilder, x: Value, y: Value, how: int = 1, delta: float = 1.0) -> Value:
    d = b.op(ew.Abs, [b.sub(x, y)])
    far = b.mul(b.sub(d, 0.5 * delta), delta)
    return _reduced(b, b.select(b.ew(ew.Le, d, delta), b.mul(b.mul(d, d), 0.5), far), how)


@lowers(A.binary_cross_entropy_with_logits.default)
def _bce_logits(
    b: OpBuilder, x: Value, y: Value, weight: Value | None = None, pos_weight: Value | None = None, how: int = 1
) -> Value:
    def f(x: Value, y: Value) -> Value:
        tail = b.op(ew.Neg, [LOWERINGS[A.log_sigmoid.default](b, x)])
        if pos_weight is not None:
            tail = b.mul(tail, b.add(b.mul(b.sub(pos_weight, 1.0), y), 1.0))
        loss = b.add(b.mul(b.sub(1.0, y), x), tail)
        return _reduced(b, loss if weight is None else b.mul(loss, weight), how)

    return b.in_f32(f, x, y)


@lowers(A.nll_loss_nd.default, A.nll_loss.default)
def _nll_loss(b: OpBuilder, x: Value, target: Value, weight: Value | None = None, how: int = 1, ignore: int = -100) -> Value:
    d = 1 if b.rank(x) > 1 else 0
    keep = b.ew(ew.Ne, target, ignore)
    safe = b.select(keep, target, 0)
    picked = b.squeeze(gather(b, x, d, b.unsqueeze(safe, d)), [d])
    scale = b.convert(keep, b.dtype(x))
    if weight is not None:
        scale = b.mul(scale, b.take(weight, [safe], [0], 0))
    loss = b.op(ew.Neg, [b.mul(picked, scale)])
    loss = b.select(keep, loss, 0.0)
    if how != 1:
        return _reduced(b, loss, how)
    dims = list(range(b.rank(loss)))
    return b.div(b.reduce(loss, "sum", dims), b.reduce(scale, "sum", dims))


@lowers(A.cross_entropy_loss.default)
def _cross_entropy(
    b: OpBuilder,
    x: Value,
    target: Value,
    weight: Value | None = None,
    how: int = 1,
    ignore: int = -100,
    smoothing: float = 0.0,
) -> Value:
    d = 1 if b.rank(x) > 1 else 0
    logs = LOWERINGS[A.log_softmax.int](b, x, d)
    if b.dtype(target).is_float:
        return _soft_cross_entropy(b, logs, target, weight, how, smoothing)
    loss = _nll_loss(b, logs, target, weight, how, ignore)
    if not smoothing:
        return loss
    keep = b.ew(ew.Ne, target, ignore)
    uniform = b.op(ew.Neg, [b.reduce(_weighted(b, logs, weight, d), "sum", [d])])
    uniform = b.select(keep, uniform, 0.0)
    dims = list(range(b.rank(uniform)))
    if how == 1:
        counted = b.convert(keep, b.dtype(x))
        if weight is not None:
            counted = b.mul(counted, b.take(weight, [b.select(keep, target, 0)], [0], 0))
        uniform = b.div(b.reduce(uniform, "sum", dims), b.reduce(counted, "sum", dims))
    elif how == 2:
        uniform = b.reduce(uniform, "sum", dims)
    share = b.div(smoothing, b.full([], b.shape(x)[d], b.dtype(x)))
    return b.add(b.mul(loss, 1.0 - smoothing), b.mul(uniform, share))


def _weighted(b: OpBuilder, x: Value, weight: Value | None, d: int) -> Value:
    """x times the weights of its classes, which lie along dim d."""
    return x if weight is None else b.mul(x, b.reshape(weight, [s if i == d else 1 for i, s in enumerate(b.shape(x))]))


def _soft_cross_entropy(b: OpBuilder, logs: Value, target: Value, weight: Value | None, how: int, smoothing: float) -> Value:
    """Targets that are probabilities of the classes; the mean is over everything but the classes."""
    d = 1 if b.rank(logs) > 1 else 0
    if smoothing:
        share = b.div(smoothing, b.full([], b.shape(logs)[d], b.dtype(logs)))
        target = b.add(b.mul(target, 1.0 - smoothing), share)
    return _reduced(b, b.op(ew.Neg, [b.reduce(b.mul(_weighted(b, logs, weight, d), target), "sum", [d])]), how)


# ---------------------------------------------------------------------------------------------------- fused with the layer
@lowers("torch_nn::_linear_cross_entropy_batch_chunked")
def _linear_cross_entropy(
    b: OpBuilder,
    x: Value,
    w: Value,
    target: Value,
    bias: Value | None,
    weight: Value | None,
    reduction: str,
    ignore: int,
    smoothing: float,
    chunk: int,
    policy: str,
    dtype: torch.dtype,
    retain: bool,
    *gradients: bool,
) -> list[Value]:
    """The loss of x [N, F] through a layer w [C, F], and gradients, which are empty unless wanted. How it is chunked is left to
    eager PyTorch."""
    if any(gradients):
        raise CompileError("linear_cross_entropy with gradients", hint="export under torch.no_grad()")
    loss = _of_layer(b, x, w, target, bias, weight, {"mean": 1, "sum": 2}[reduction], ignore, smoothing, dtype)
    return [loss, *(b.full(shape, 0, b.dtype(x)) for shape in ([0, 0], [0, 0], [0]))]


@lowers("torch_nn::_linear_cross_entropy_batch_chunked_no_reduction")
def _linear_cross_entropy_each(
    b: OpBuilder,
    x: Value,
    w: Value,
    target: Value,
    bias: Value | None,
    weight: Value | None,
    ignore: int,
    chunk: int,
    policy: str,
    dtype: torch.dtype,
) -> Value:
    return _of_layer(b, x, w, target, bias, weight, 0, ignore, 0.0, dtype)


def _of_layer(
    b: OpBuilder,
    x: Value,
    w: Value,
    target: Value,
    bias: Value | None,
    weight: Value | None,
    how: int,
    ignore: int,
    smoothing: float,
    dtype: torch.dtype,
) -> Value:
    """The loss, computed in `dtype` from the layer on and rounded once."""
    wide, w, bias, weight = (None if v is None else b.convert(v, b.as_dtype(dtype)) for v in (x, w, bias, weight))
    scores = LOWERINGS[A.linear.default](b, wide, w, bias)
    return b.convert(_cross_entropy(b, scores, target, weight, how, ignore, smoothing), b.dtype(x))
