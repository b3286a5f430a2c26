"""The operators by which torchao quantises tensors in blocks, whatever their sizes are; known by name, without the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dhlo.errors import CompileError
from dhlo.frontend.aten import elementwise
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import LOWERINGS, lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import as_expr
from dhlo.ir.types import DType, from_torch_dtype

__all__ = ["elementwise"]  # whose rule for rounding this is made of

Number = int | float


def _blocks(b: OpBuilder, x: Value, block: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The shape of x in which each dim that holds several blocks is two, and the dims of it that lie within a block."""
    shape: list[Any] = []
    inner: list[int] = []
    if len(block) != b.rank(x):
        raise CompileError(f"blocks of {len(block)} dims don't divide a tensor of {b.rank(x)}")
    for size, length in zip(b.shape(x), map(as_expr, block), strict=True):
        if length != 1 and not b.dims.equal(length, size):
            shape.append(b.dims.size(size / length))
            size = length
        if length != 1:
            inner.append(len(shape))
        shape.append(size)
    return shape, inner


def _spread(b: OpBuilder, p: Value, shape: Sequence[Any], inner: Sequence[int]) -> Value:
    """A parameter for each block, against a tensor of `shape`."""
    return b.reshape(p, [1 if d in inner else n for d, n in enumerate(shape)])


def _integers(dtype: torch.dtype) -> tuple[DType, int, int]:
    """The dtype in which integers of 1 to 8 bits are kept, and the least and greatest of them."""
    name = str(dtype).removeprefix("torch.")
    unsigned = name.startswith("uint")
    bits = name.removeprefix("u").removeprefix("int")
    if not bits.isdigit() or int(bits) > 8 and unsigned:
        raise CompileError(f"quantisation to {name} is not supported")
    n = int(bits)
    kept = from_torch_dtype(dtype if n > 8 else torch.uint8 if unsigned else torch.int8)
    return (kept, 0, (1 << n) - 1) if unsigned else (kept, -(1 << n - 1), (1 << n - 1) - 1)


def _limits(dtype: torch.dtype, low: Number | None, high: Number | None) -> tuple[Number, Number]:
    _, least, most = _integers(dtype)
    return least if low is None else low, most if high is None else high


def _clamp(b: OpBuilder, x: Value, low: Operand, high: Operand) -> Value:
    return b.minimum(b.maximum(x, low), high)


def _round(b: OpBuilder, x: Value) -> Value:
    rounded: Value = LOWERINGS[A.round.default](b, x)
    return rounded


@lowers("torchao::quantize_affine")
def _quantize(
    b: OpBuilder,
    x: Value,
    block: Sequence[Any],
    scale: Value,
    zero: Value | None,
    dtype: torch.dtype,
    low: Number | None = None,
    high: Number | None = None,
) -> Value:
    least, most = _limits(dtype, low, high)
    shape, inner = _blocks(b, x, block)
    y = _round(b, b.mul(b.reshape(x, shape), b.div(1.0, _spread(b, scale, shape, inner))))
    if zero is not None:
        y = b.add(y, _spread(b, zero, shape, inner))
    return b.convert(b.reshape(_clamp(b, y, float(least), float(most)), b.shape(x)), _integers(dtype)[0])


@lowers("torchao::dequantize_affine")
def _dequantize(
    b: OpBuilder,
    q: Value,
    block: Sequence[Any],
    scale: Value,
    zero: Value | None,
    input_dtype: torch.dtype,
    low: Number | None = None,
    high: Number | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> Value:
    shape, inner = _blocks(b, q, block)
    out = from_torch_dtype(output_dtype)
    y = b.convert(b.reshape(q, shape), out)
    if zero is not None:
        y = b.sub(y, b.convert(_spread(b, zero, shape, inner), out))
    return b.convert(b.reshape(b.mul(y, _spread(b, scale, shape, inner)), b.shape(q)), out)


@lowers("torchao::choose_qparams_affine")
def _choose(
    b: OpBuilder,
    x: Value,
    mapping: str,
    block: Sequence[Any],
    dtype: torch.dtype,
    low: Number | None = None,
    high: Number | None = None,
    eps: float | None = None,
    scale_dtype: torch.dtype | None = None,
    zero_dtype: torch.dtype | None = None,
    keepdim: bool = False,
) -> list[Value]:
    """Scale and zero point of each block, such that low..high span its elements and 0."""
    least, most = _limits(dtype, low, high)
    eps = torch.finfo(b.dtype(x).torch).smallest_normal if eps is None else eps
    shape, inner = _blocks(b, x, block)
    wide = b.reshape(x, shape)
    below = b.minimum(b.reduce(wide, "min", inner), 0.0)
    above = b.maximum(b.reduce(wide, "max", inner), 0.0)
    if mapping == "ASYMMETRIC":
        scale = b.maximum(b.div(b.sub(above, below), float(most - least)), eps)
        zero = _clamp(b, b.sub(float(least), _round(b, b.div(below, scale))), float(least), float(most))
        zero_dtype = torch.int32 if zero_dtype is None else zero_dtype
    else:
        if mapping == "SYMMETRIC":
            scale = b.div(b.maximum(b.op(ew.Neg, [below]), above), float(most - least) / 2)
        elif mapping == "SYMMETRIC_NO_CLIPPING_ERR":
            scale = b.maximum(b.div(below, float(least)), b.div(above, float(most)))
        else:
            raise CompileError(f"the mapping '{mapping}' of torchao is not supported")
        scale = b.maximum(scale, eps)
        zero = b.full(b.shape(scale), float(int((most + least + 1) / 2)), b.dtype(scale))
    if keepdim:
        kept = [b.dims.size(n / as_expr(length)) for n, length in zip(b.shape(x), block, strict=True)]
        scale, zero = b.reshape(scale, kept), b.reshape(zero, kept)
    scale = scale if scale_dtype is None else b.convert(scale, from_torch_dtype(scale_dtype))
    return [scale, zero if zero_dtype is None else b.convert(zero, from_torch_dtype(zero_dtype))]
