"""Activation functions and softmax, composed from elementwise ops and reductions."""

from __future__ import annotations

import math
from typing import Any

import torch

from dhlo.frontend.aten.elementwise import clamp
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import elementwise as ew


@lowers(A.relu.default)
def _relu(b: OpBuilder, x: Value) -> Value:
    return b.maximum(x, 0)


@lowers(A.relu6.default)
def _relu6(b: OpBuilder, x: Value) -> Value:
    return b.minimum(b.maximum(x, 0), 6)


@lowers(A.hardtanh.default)
def _hardtanh(b: OpBuilder, x: Value, low: float = -1.0, high: float = 1.0) -> Value:
    if b.dtype(x).is_int:
        low, high = int(low), int(high)
    return clamp(b, x, low, high)


@lowers(A.leaky_relu.default)
def _leaky_relu(b: OpBuilder, x: Value, slope: float = 0.01) -> Value:
    return b.select(b.ew(ew.Gt, x, 0), x, b.mul(x, slope))


@lowers(A.prelu.default, A._prelu_kernel.default)
def _prelu(b: OpBuilder, x: Value, weight: Value) -> Value:
    rank = b.rank(x)
    if b.rank(weight) != rank:
        w = b.shape(weight)
        weight = b.reshape(weight, [w[0] if w and d == (1 if rank > 1 else 0) else 1 for d in range(rank)])
    return b.select(b.ew(ew.Gt, x, 0), x, b.mul(x, weight))


@lowers(A.elu.default)
def _elu(b: OpBuilder, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    def f(v: Value) -> Value:
        down = b.mul(b.unary(ew.Expm1, b.mul(v, input_scale)), alpha * scale)
        return b.select(b.ew(ew.Gt, v, 0), b.mul(v, scale), down)

    return b.in_f32(f, x)


@lowers(A.selu.default)
def _selu(b: OpBuilder, x: Value) -> Value:
    return _elu(b, x, 1.6732632423543772, 1.0507009873554805)


@lowers(A.celu.default)
def _celu(b: OpBuilder, x: Value, alpha: float = 1.0) -> Value:
    return _elu(b, x, alpha, 1.0, 1.0 / alpha)


@lowers(A.gelu.default)
def _gelu(b: OpBuilder, x: Value, *, approximate: str = "none") -> Value:
    def exact(v: Value) -> Value:
        return b.mul(v, b.unary(ew.NormalCdf, v))

    def tanh(v: Value) -> Value:
        inner = b.mul(v, b.add(b.mul(b.mul(v, v), 0.044715), 1.0))
        return b.mul(v, b.unary(ew.Sigmoid, b.mul(inner, math.sqrt(8.0 / math.pi))))  # (1 + tanh(x)) / 2 = sigmoid(2 x)

    return b.in_f32(exact if approximate == "none" else tanh, x)


@lowers(A.silu.default)
def _silu(b: OpBuilder, x: Value) -> Value:
    return b.in_f32(lambda v: b.mul(v, b.unary(ew.Sigmoid, v)), x)


@lowers(A.mish.default)
def _mish(b: OpBuilder, x: Value) -> Value:
    return b.in_f32(lambda v: b.mul(v, b.unary(ew.Tanh, _softplus(b, v))), x)


@lowers(A.softplus.default)
def _softplus(b: OpBuilder, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    def f(v: Value) -> Value:
        z = b.mul(v, beta) if beta != 1 else v
        soft = b.unary(ew.Log1p, b.unary(ew.Exp, z))
        return b.select(b.ew(ew.Gt, z, threshold), v, b.div(soft, beta) if beta != 1 else soft)

    return b.in_f32(f, x)


@lowers(A.log_sigmoid.default)
def _log_sigmoid(b: OpBuilder, x: Value) -> Value:
    def f(v: Value) -> Value:
        small = b.unary(ew.Log1p, b.unary(ew.Exp, b.op(ew.Neg, [b.op(ew.Abs, [v])])))
        return b.sub(b.minimum(v, 0), small)

    return b.in_f32(f, x)


def _hard_gate(b: OpBuilder, x: Value) -> Value:
    """min(max(x + 3, 0), 6) / 6: exactly 0 and 1 at the ends also by multiplication, which takes a fraction of a division."""
    return b.mul(b.minimum(b.maximum(b.add(x, 3), 0), 6), 1.0 / 6.0)


@lowers(A.hardsigmoid.default)
def _hardsigmoid(b: OpBuilder, x: Value) -> Value:
    return b.in_f32(lambda v: _hard_gate(b, v), x)


@lowers(A.hardswish.default)
def _hardswish(b: OpBuilder, x: Value) -> Value:
    return b.in_f32(lambda v: b.mul(v, _hard_gate(b, v)), x)


@lowers(A.threshold.default)
def _threshold(b: OpBuilder, x: Value, threshold: float, value: float) -> Value:
    return b.select(b.ew(ew.Le, x, b.held(threshold, b.dtype(x))), value, x, dtype=b.dtype(x))


@lowers(A.softshrink.default)
def _softshrink(b: OpBuilder, x: Value, lambd: float = 0.5) -> Value:
    down = b.select(b.ew(ew.Lt, x, -lambd), b.add(x, lambd), 0.0)
    return b.select(b.ew(ew.Gt, x, lambd), b.sub(x, lambd), down)


@lowers(A.hardshrink.default)
def _hardshrink(b: OpBuilder, x: Value, lambd: float = 0.5) -> Value:
    inside = b.ew(ew.And, b.ew(ew.Ge, x, -lambd), b.ew(ew.Le, x, lambd))
    return b.select(inside, 0.0, x)


@lowers(A.glu.default)
def _glu(b: OpBuilder, x: Value, dim: int = -1) -> Value:
    d = b.dim(x, dim)
    half = b.size(b.shape(x)[d] / 2)
    return b.mul(b.slice(x, d, 0, half), b.op(ew.Sigmoid, [b.slice(x, d, half, half)]))


@lowers(A.logit.default)
def _logit(b: OpBuilder, x: Value, eps: float | None = None) -> Value:
    if eps is not None:
        x = b.minimum(b.maximum(x, eps), 1 - eps)
    return b.unary(ew.Log, b.div(x, b.sub(1.0, x)))


# ---------------------------------------------------------------------------------------------------- softmax
@lowers(A._safe_softmax.default)
def _safe_softmax(b: OpBuilder, x: Value, dim: int, dtype: Any = None) -> Value:
    """Rows of nothing but -inf give zeros."""
    y = _normalised(b, x, dim, dtype, log=False, top="max")
    top = b.reduce(x, "max", b.dims_list(x, dim), keepdim=True)
    return b.select(b.ew(ew.Eq, top, -math.inf), 0.0, y, dtype=b.dtype(y))


@lowers(A.softmax.int, A._softmax.default)
def _softmax(b: OpBuilder, x: Value, dim: int, dtype: Any = None) -> Value:
    return _normalised(b, x, dim, dtype, log=False)


@lowers(A.log_softmax.int, A._log_softmax.default)
def _log_softmax(b: OpBuilder, x: Value, dim: int, dtype: Any = None) -> Value:
    return _normalised(b, x, dim, dtype, log=True)


def _normalised(b: OpBuilder, x: Value, dim: int, dtype: Any, log: bool, top: str = "maxnum") -> Value:
    """(log-)softmax. `top`: the reduction that finds the largest; any will do, since NaN makes the sum NaN."""
    if isinstance(dtype, torch.dtype):
        x = b.convert(x, dtype)
    d = b.dim(x, dim)
    if b.rank(x) == 0:
        return b.full([], 0.0 if log else 1.0, b.dtype(x))

    def f(v: Value) -> Value:
        z = b.sub(v, b.reduce(v, top, [d], keepdim=True))
        e = b.unary(ew.ExpBelow, z)
        total = b.reduce(e, "sum", [d], keepdim=True)  # at least 1, so that its reciprocal is a normal number
        return b.sub(z, b.unary(ew.Log, total)) if log else b.mul(e, b.div(1.0, total))

    return b.in_f32(f, x)


@lowers(A.logsumexp.default)
def _logsumexp(b: OpBuilder, x: Value, dim: Any, keepdim: bool = False) -> Value:
    dims = b.dims_list(x, dim)

    def f(v: Value) -> Value:
        top = b.reduce(v, "max", dims, keepdim=True)
        total = b.reduce(b.unary(ew.ExpBelow, b.sub(v, top)), "sum", dims, keepdim=True)
        y = b.select(b.op(ew.IsInf, [top]), top, b.add(b.unary(ew.Log, total), top))
        return y if keepdim else b.squeeze(y, dims)

    return b.in_f32(f, b.floating(x))


def apply(b: OpBuilder, name: str, x: Operand) -> Value:
    """The activation of a recurrent cell by name."""
    return {"tanh": lambda: b.unary(ew.Tanh, x), "relu": lambda: _relu(b, x)}[name]()
