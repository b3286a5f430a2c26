"""Normalisations, composed from reductions and elementwise ops; statistics in f32 or wider."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from dhlo.frontend.aten.reduction import mean, variance
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers, updates
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import product


def _affine(b: OpBuilder, y: Value, weight: Value | None, bias: Value | None, dim: int | None) -> Value:
    """y * weight + bias; along `dim`, or aligned at the right for None."""

    def fit(p: Value) -> Value:
        p = b.convert(p, b.dtype(y))
        return p if dim is None else b.expand(p, b.shape(y), [dim])

    if weight is not None:
        y = b.mul(y, fit(weight))
    return y if bias is None else b.add(y, fit(bias))


def _standardise(b: OpBuilder, x: Value, dims: list[int], eps: float) -> tuple[Value, Value, Value]:
    var, mu = variance(b, x, dims, 0, True)
    rstd = b.unary(ew.Rsqrt, b.add(var, eps))
    return b.mul(b.sub(x, mu), rstd), mu, rstd


@lowers(A.native_layer_norm.default)
def _native_layer_norm(b: OpBuilder, x: Value, shape: Any, weight: Value | None, bias: Value | None, eps: float) -> list[Value]:
    dims = list(range(b.rank(x) - len(shape), b.rank(x)))
    for d, n in zip(dims, shape, strict=True):
        b.dims.same(b.shape(x)[d], n)
    dtype = b.dtype(x)
    y, mu, rstd = _standardise(b, b.convert(x, b.wide_dtype(x)), dims, eps)
    own = next((b.dtype(v) for v in (weight, bias) if v is not None), dtype)  # ATen's mean and deviation have the weights' dtype
    return [b.convert(_affine(b, y, weight, bias, None), dtype), b.convert(mu, own), b.convert(rstd, own)]


@lowers(A.layer_norm.default)
def _layer_norm(
    b: OpBuilder,
    x: Value,
    shape: Any,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    return _native_layer_norm(b, x, shape, weight, bias, eps)[0]


@lowers(A.rms_norm.default, A._fused_rms_norm.default)
def _rms_norm(b: OpBuilder, x: Value, shape: Any, weight: Value | None = None, eps: float | None = None) -> Value:
    dims = list(range(b.rank(x) - len(shape), b.rank(x)))

    def f(v: Value) -> Value:
        small = torch.finfo(b.dtype(v).torch).eps if eps is None else eps  # of the type that is computed in
        y = b.mul(v, b.unary(ew.Rsqrt, b.add(mean(b, b.mul(v, v), dims, True), small)))
        return _affine(b, y, weight, None, None)

    return b.in_f32(f, x)


@lowers(A.group_norm.default)
def _group_norm(
    b: OpBuilder,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    batch, channels, *spatial = b.shape(x)

    def f(v: Value) -> Value:
        split = b.reshape(v, [batch, groups, b.size(channels / groups), *spatial])
        mu, rstd = (b.reshape(s, [batch, groups, *[1] * (b.rank(split) - 2)]) for s in _group_statistics(b, v, groups, eps))
        return _affine(b, b.reshape(b.mul(b.sub(split, mu), rstd), b.shape(x)), weight, bias, 1)

    return b.in_f32(f, x)


def _group_statistics(b: OpBuilder, x: Value, groups: int, eps: float) -> tuple[Value, Value]:
    """Mean and reciprocal deviation [batch, groups] of groups of channels, each a run of memory."""
    batch, channels, *spatial = b.shape(x)
    var, mu = variance(b, b.reshape(x, [batch, groups, product([b.size(channels / groups), *spatial])]), [2], 0, False)
    return mu, b.unary(ew.Rsqrt, b.add(var, eps))


@lowers(A.native_group_norm.default)
def _native_group_norm(
    b: OpBuilder, x: Value, weight: Value | None, bias: Value | None, n: Any, c: Any, hw: Any, groups: int, eps: float
) -> list[Value]:
    y = _group_norm(b, x, groups, weight, bias, eps)
    wide = b.convert(x, "f32") if b.dtype(x).bytes < 4 else x
    return [y, *(b.convert(v, b.dtype(x)) for v in _group_statistics(b, wide, groups, eps))]


def batch_norm(b: OpBuilder, x: Value, weight: Value | None, bias: Value | None, mu: Value, var: Value, eps: float) -> Value:
    """Inference: one scale and shift a channel, computed from the weights, in f32 at least as by ATen's kernels."""
    wide = [None if p is None else b.convert(p, "f32") if b.dtype(p).bytes < 4 else p for p in (weight, bias, mu, var)]
    weight, bias, mu, var = wide
    scale = b.unary(ew.Rsqrt, b.add(var, eps))
    if weight is not None:
        scale = b.mul(scale, weight)
    shift = b.op(ew.Neg, [b.mul(mu, scale)])
    if bias is not None:
        shift = b.add(shift, bias)
    return b.in_f32(lambda v: _affine(b, v, scale, shift, 1), x)


@lowers(A.batch_norm.default)
def _batch_norm(
    b: OpBuilder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mu: Value | None,
    var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Value:
    if b.rank(x) < 2:  # allowed where there is nothing
        b.require(sympy.Eq(b.type(x).numel, 0), "batch_norm wants a dim of channels")
        return x
    if training or mu is None or var is None:
        return _by_batch(b, x, weight, bias, eps)
    return batch_norm(b, x, weight, bias, mu, var, eps)


def _by_batch(b: OpBuilder, x: Value, weight: Value | None, bias: Value | None, eps: float) -> Value:
    dims = [d for d in range(b.rank(x)) if d != 1]
    return b.in_f32(lambda v: _affine(b, _standardise(b, v, dims, eps)[0], weight, bias, 1), x)


def _running(b: OpBuilder, x: Value, mu: Value | None, var: Value | None, momentum: float, dims: list[int]) -> dict[int, Value]:
    """Running statistics, arguments 3 and 4, after a call that takes the statistics of x over `dims`, averaged over what is left
    beside the channels. A call on nothing leaves them alone."""
    if mu is None or var is None:
        return {}
    now = variance(b, b.convert(x, b.wide_dtype(mu)), dims, 1, True)
    rest = [d for d in range(b.rank(x)) if d != 1]
    some = b.convert(b.full([], sympy.Piecewise((1, b.count(x, list(range(b.rank(x)))) > 0), (0, True)), "i64"), "i1")

    def step(old: Value, new: Value) -> Value:
        new = mean(b, new, rest, False)
        return b.in_f32(lambda o: b.select(some, b.add(b.mul(o, 1 - momentum), b.mul(new, momentum)), o), old)

    return {3: step(mu, now[1]), 4: step(var, now[0])}


@updates(A.batch_norm.default)
def _batch_norm_running(
    b: OpBuilder, x: Value, _w: Any, _b: Any, mu: Value | None, var: Value | None, training: bool, momentum: float, *_: Any
) -> dict[int, Value]:
    return _running(b, x, mu, var, momentum, [d for d in range(b.rank(x)) if d != 1]) if training else {}


@lowers(A.instance_norm.default)
def _instance_norm(
    b: OpBuilder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mu: Value | None,
    var: Value | None,
    by_input: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Value:
    if not by_input and mu is not None and var is not None:
        return batch_norm(b, x, weight, bias, mu, var, eps)
    dims = list(range(2, b.rank(x)))
    return b.in_f32(lambda v: _affine(b, _standardise(b, v, dims, eps)[0], weight, bias, 1), x)


@updates(A.instance_norm.default)
def _instance_norm_running(
    b: OpBuilder, x: Value, _w: Any, _b: Any, mu: Value | None, var: Value | None, by_input: bool, momentum: float, *_: Any
) -> dict[int, Value]:
    return _running(b, x, mu, var, momentum, list(range(2, b.rank(x)))) if by_input else {}


@lowers(A._native_batch_norm_legit_no_training.default)
def _native_batch_norm(
    b: OpBuilder, x: Value, weight: Value | None, bias: Value | None, mu: Value, var: Value, momentum: float, eps: float
) -> list[Value]:
    unused = b.full([0], 0, b.dtype(x))
    return [batch_norm(b, x, weight, bias, mu, var, eps), unused, unused]


@lowers(A._weight_norm.default)
def _weight_norm(b: OpBuilder, v: Value, g: Value, dim: int = 0) -> Value:
    dims = [d for d in range(b.rank(v)) if d != dim] if dim != -1 else list(range(b.rank(v)))
    return b.mul(v, b.div(g, b.unary(ew.Sqrt, b.reduce(b.mul(v, v), "sum", dims, keepdim=True))))
