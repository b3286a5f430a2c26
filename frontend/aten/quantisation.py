"""Fake quantisation, the choice of its parameters, and products of quantised matrices.

The operators `quantized_decomposed::*` that quantise and dequantise are Python code of PyTorch, which is traced. Those of torchao
are in `torchao.py` beside this.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from dhlo.errors import CompileError
from dhlo.frontend.aten import composite, elementwise  # noqa: F401  (whose rules these are made of)
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import LOWERINGS, lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.types import from_torch_dtype


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


@functools.cache
def _int4_layout() -> tuple[int, bool]:
    """How PyTorch packs int4 weights for this processor: rows of a whole block, and whether a byte of it holds rows n and
    n + block / 2 (else neighbours, as it does in the block that is left). Programs come from where they are compiled: the file
    doesn't say. Raises CompileError for a layout that isn't known."""
    w = torch.randint(0, 16, (128, 2), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(w, 1).reshape(-1)
    for block in (64, 32):
        low, high = (nibble.reshape(128 // block, 2, block // 2) for nibble in (packed & 15, packed >> 4))
        for halves, rows in ((True, torch.cat([low, high], -1)), (False, torch.stack([low, high], -1).flatten(2))):
            if rows.transpose(1, 2).reshape(128, 2).equal(w.to(torch.uint8)):
                return block, halves
    raise CompileError("this processor's layout of packed int4 weights is not known")


def _int4_rows(b: OpBuilder, packed: Value) -> Value:
    """The codes 0..15 [N, K] (ui8) of packed int4 weights [N, K / 2]."""
    n, half = b.shape(packed)
    if not n.is_Integer:
        raise CompileError("packed int4 weights of a dynamic number of rows")
    block, halves = _int4_layout()
    k, whole = 2 * half, int(n) // block * block
    flat = b.reshape(packed, [n * half])
    parts = []
    for start, size, width, apart in ((0, whole, block, halves), (whole, int(n) - whole, int(n) - whole, False)):
        if not size:
            continue
        data = b.reshape(b.slice(flat, 0, start * half, size * half), [size // width, k, width // 2])
        low, high = b.ew(ew.And, data, 15), b.ew(ew.ShiftRight, data, 4)
        if not apart:
            low, high = b.unsqueeze(low, 3), b.unsqueeze(high, 3)
        rows = b.reshape(b.concat([low, high], 2 if apart else 3), [size // width, k, width])
        parts.append(b.reshape(b.swap(rows, 1, 2), [size, k]))
    return b.concat(parts, 0)


@lowers(A._weight_int4pack_mm_for_cpu.default)
def _weight_int4_mm(b: OpBuilder, x: Value, packed: Value, group: int, parameters: Value) -> Value:
    """x [M, K] times the rows [N, K] of an int4 matrix, whose groups along K have a scale and a shift [K / group, N, 2] each:
    (q - 8) * scale + shift."""
    q = _int4_rows(b, packed)
    n, k = b.shape(q)
    scale, shift = (b.unsqueeze(b.swap(b.pick(b.convert(parameters, "f32"), 2, i), 0, 1), 2) for i in (0, 1))
    codes = b.reshape(b.convert(b.sub(b.convert(q, "i32"), 8), "f32"), [n, k / group, group])
    w = b.reshape(b.add(b.mul(codes, scale), shift), [n, k])
    return b.in_f32(lambda v: b.matmul(b.convert(v, "f32"), b.swap(w, 0, 1)), x)


@lowers(A._convert_weight_to_int4pack_for_cpu.default)
def _pack_int4(b: OpBuilder, w: Value, inner_tiles: int) -> Value:
    """The inverse of `_int4_rows`: codes [N, K] (i32) as PyTorch packs them for this processor."""
    n, k = b.shape(w)
    if not n.is_Integer:
        raise CompileError("int4 weights to be packed have a dynamic number of rows")
    block, halves = _int4_layout()
    whole = int(n) // block * block
    parts = []
    for start, size, width, apart in ((0, whole, block, halves), (whole, int(n) - whole, int(n) - whole, False)):
        if not size:
            continue
        rows = b.swap(b.reshape(b.slice(w, 0, start, size), [size // width, width, k]), 1, 2)
        rows = b.reshape(rows, [size // width, k, *((2, width // 2) if apart else (width // 2, 2))])
        low, high = (b.pick(rows, 2 if apart else 3, i) for i in (0, 1))
        parts.append(b.reshape(b.ew(ew.Or, low, b.ew(ew.ShiftLeft, high, 4)), [size * k / 2]))
    return b.convert(b.reshape(b.concat(parts, 0), [n, k / 2]), "ui8")


def _scaled_product(
    b: OpBuilder, x: Value, y: Value, scale_x: Value, scale_y: Value, bias: Value | None, dtype: torch.dtype | None
) -> Value:
    """The product of x [M, K] and y [K, N] in f32, each scaled: as a whole, or by row and column."""

    def scaled(v: Value, scale: Value) -> Value:
        one = b.rank(scale) < 2 and b.shape(scale) in ([], [1])
        return b.mul(b.convert(v, "f32"), b.reshape(scale, []) if one else b.convert(scale, "f32"))

    out = b.matmul(scaled(x, scale_x), scaled(y, scale_y))
    if bias is not None:
        out = b.add(out, b.convert(bias, "f32"))
    return b.convert(out, b.dtype(x) if dtype is None else from_torch_dtype(dtype))


@lowers(A._scaled_mm.default)
def _scaled_mm(
    b: OpBuilder,
    x: Value,
    y: Value,
    scale_x: Value,
    scale_y: Value,
    bias: Value | None = None,
    scale_result: Value | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Value:
    """`scale_result` has no effect on CPUs, in PyTorch either."""
    return _scaled_product(b, x, y, scale_x, scale_y, bias, out_dtype)


@lowers(A._scaled_mm_v2.default)
def _scaled_mm_v2(
    b: OpBuilder,
    x: Value,
    y: Value,
    scale_x: list[Value],
    recipe_x: list[int],
    swizzle_x: list[int],
    scale_y: list[Value],
    recipe_y: list[int],
    swizzle_y: list[int],
    bias: Value | None = None,
    out_dtype: torch.dtype | None = None,
    contraction_dim: Any = (),
    use_fast_accum: bool = False,
) -> Value:
    whole_or_rows = (0, 1)  # of torch.nn.functional.ScalingType
    if [*map(len, (scale_x, scale_y, recipe_x, recipe_y))] != [1] * 4 or {*recipe_x, *recipe_y} - {*whole_or_rows}:
        raise CompileError("scaled products by blocks are not supported", hint="scale tensors as a whole, or rows and columns")
    return _scaled_product(b, x, y, scale_x[0], scale_y[0], bias, out_dtype)
