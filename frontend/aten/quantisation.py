"""Fake quantisation, the choice of its parameters, and products of quantised matrices.

The operators `quantized_decomposed::*` that quantise and dequantise are Python code of PyTorch, which is traced.
"""

from __future__ import annotations

from typing import Any

import torch

from dhlo.frontend.aten import composite, elementwise  # noqa: F401  (whose rules these are made of)
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import LOWERINGS, lowers
from dhlo.ir.ops import elementwise as ew


def _fake(b: OpBuilder, x: Value, scale: Operand, zero: Operand, low: int, high: int) -> list[Value]:
    """x rounded to the values that low..high stand for, and which elements were within."""

    def steps(v: Value) -> Value:
        return b.add(LOWERINGS[A.round.default](b, b.mul(v, b.div(1.0, b.tensor(scale, "f32")))), b.tensor(zero, "f32"))

    wide = b.convert(x, "f32") if b.dtype(x).bytes < 4 else x
    at = steps(wide)
    kept = b.minimum(b.maximum(at, float(low)), float(high))
    y = b.mul(b.sub(kept, b.tensor(zero, "f32")), b.tensor(scale, "f32"))
    return [b.convert(y, b.dtype(x)), b.ew(ew.And, b.ew(ew.Ge, at, float(low)), b.ew(ew.Le, at, float(high)))]


@lowers(A.fake_quantize_per_tensor_affine_cachemask.default)
def _fake_per_tensor(b: OpBuilder, x: Value, scale: Operand, zero: Operand, low: int, high: int) -> list[Value]:
    one: Any = lambda v: b.reshape(v, []) if b.is_tensor(v) else v
    return _fake(b, x, one(scale), one(zero), low, high)


@lowers(A._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def _fake_per_tensor_if(b: OpBuilder, x: Value, scale: Value, zero: Value, enabled: Value, low: int, high: int) -> list[Value]:
    y, inside = _fake_per_tensor(b, x, scale, zero, low, high)
    on = b.ew(ew.Ne, b.reshape(enabled, []), 0)
    return [b.select(on, y, x), b.select(on, inside, True, dtype="i1")]


@lowers(A.fake_quantize_per_tensor_affine.default, A.fake_quantize_per_tensor_affine.tensor_qparams)
def _fake_per_tensor_only(b: OpBuilder, *args: Any) -> Value:
    return _fake_per_tensor(b, *args)[0]


@lowers(A.fake_quantize_per_channel_affine_cachemask.default)
def _fake_per_channel(b: OpBuilder, x: Value, scale: Value, zero: Value, axis: int, low: int, high: int) -> list[Value]:
    along: Any = lambda v: b.expand(b.convert(v, "f32"), b.shape(x), [b.dim(x, axis)])
    return _fake(b, x, along(scale), along(zero), low, high)


@lowers(A.fake_quantize_per_channel_affine.default, "quantized_decomposed::fake_quant_per_channel")
def _fake_per_channel_only(b: OpBuilder, *args: Any) -> Value:
    return _fake_per_channel(b, *args)[0]


def _parameters(b: OpBuilder, x: Value, low: int, high: int, eps: float, symmetric: bool, unsigned: bool) -> list[Value]:
    """Scale (f64) and zero point (i64), of one element each, that make low..high span x and 0."""
    least, most = LOWERINGS[A.aminmax.default](b, b.convert(x, "f32"))
    least, most = b.minimum(least, 0.0), b.maximum(most, 0.0)
    if symmetric:
        most = b.maximum(b.op(ew.Neg, [least]), most)
        scale = b.maximum(b.div(most, (high - low) / 2), eps)
        zero = b.full([1], 128 if unsigned else 0, "i64")
    else:
        scale = b.maximum(b.div(b.sub(most, least), float(high - low)), eps)
        at = b.convert(LOWERINGS[A.round.default](b, b.div(least, scale)), "i64")
        zero = b.reshape(b.minimum(b.maximum(b.sub(low, at), low), high), [1])
    return [b.reshape(b.convert(scale, "f64"), [1]), zero]


@lowers("quantized_decomposed::choose_qparams")
def _choose(b: OpBuilder, x: Value, low: int, high: int, eps: float, dtype: torch.dtype) -> list[Value]:
    return _parameters(b, x, low, high, eps, False, False)


@lowers("quantized_decomposed::choose_qparams_symmetric")
def _choose_symmetric(b: OpBuilder, x: Value, low: int, high: int, eps: float, dtype: torch.dtype) -> list[Value]:
    return _parameters(b, x, low, high, eps, True, dtype == torch.uint8)


@lowers(A._int_mm.default)
def _int_mm(b: OpBuilder, x: Value, y: Value) -> Value:
    return b.matmul_bytes(x, y)


@lowers(A._weight_int8pack_mm.default)
def _weight_int8_mm(b: OpBuilder, x: Value, w: Value, scales: Value) -> Value:
    """x [M, K] times the rows [N, K] of an int8 matrix, scaled."""
    return b.in_f32(lambda v: b.mul(b.matmul(v, b.convert(b.swap(w, 0, 1), b.dtype(v))), b.convert(scales, b.dtype(v))), x)
