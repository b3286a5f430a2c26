"""Bytes that a program dequantises stay bytes where it pools their maximum, and where it quantises them in the same way again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch

from dhlo.ir.dialect import attr, build, defining
from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Pool
from dhlo.ir.ops.movement import Full
from dhlo.ir.types import from_mlir
from dhlo.passes.cse import erase_dead
from dhlo.passes.round_codes import BYTES, bounded, filled_with

__all__ = ["keep_codes"]

_FLOATS: Final = torch.finfo(torch.float32)
_SAME_SCALE: Final = 2.0**-16
"""How far a scale times another's inverse may be from 1: rounding hides what that changes of a byte."""


@dataclass(frozen=True)
class _Dequantised:
    """(codes - zero) * scale as f32, by numbers that the program says itself: weights can be replaced."""

    codes: Value
    zero: float
    scale: float

    @staticmethod
    def of(v: Value) -> _Dequantised | None:
        """What made a value, if that did."""
        scale, zero, op = 1.0, 0.0, defining(v)
        if isinstance(op, ew.Mul) and (factor := filled_with(op.operands[1])) is not None:
            scale, op = factor, defining(op.operands[0])
        if isinstance(op, ew.Sub) and (shift := filled_with(op.operands[1])) is not None:
            zero, op = shift, defining(op.operands[0])
        if not isinstance(op, ew.Convert) or from_mlir(v).dtype.name != "f32" or from_mlir(op.operands[0]).dtype.name not in BYTES:
            return None
        low, high = BYTES[from_mlir(op.operands[0]).dtype.name]
        keeps_order = 0 < scale < math.inf  # infinity times 0 is NaN
        return _Dequantised(op.operands[0], zero, scale) if keeps_order and zero.is_integer() and low <= zero <= high else None


def keep_codes(module: Module) -> None:
    """Pools bytes where a max pooling reads `(bytes - zero) * scale`: the larger byte is the larger number. Its windows must have a
    point inside, since what lies outside is -inf, which no byte is. Bytes that are quantised as they were before are what they
    were."""
    for block in bodies(module):
        ops = [op for op in walk(block) if isinstance(op, (Pool, ew.Convert))]
        if any([_pool(op) if isinstance(op, Pool) else _requantise(op) for op in ops]):  # all of them
            erase_dead(block)


def _pool(op: Any) -> bool:
    """Whether the pooling became one of bytes."""
    inside = all(2 * pad <= size for pad, size in zip(attr(op, "padding"), attr(op, "window"), strict=True))
    if attr(op, "how") != "max" or any(d != 1 for d in attr(op, "dilation")) or not inside:
        return False
    image = _Dequantised.of(op.operands[0])
    if image is None:
        return False
    y = from_mlir(op.results[0])

    def number(value: float) -> Value:
        made: Value = build(Full, [], {"value": repr(value)}, results=[y]).results[0]
        return made

    attrs = {n: attr(op, n) for n in ("how", "window", "stride", "padding", "dilation", "count_pad", "divisor")}
    with ir.InsertionPoint(op.operation), op.location:
        made = build(Pool, [image.codes], attrs, results=[y.with_dtype(from_mlir(image.codes).dtype.name)]).results[0]
        made = build(ew.Convert, [made], results=[y]).results[0]
        if image.zero:
            made = build(ew.Sub, [made, number(image.zero)]).results[0]
        made = build(ew.Mul, [made, number(image.scale)]).results[0]
    op.results[0].replace_all_uses_with(made)
    op.operation.erase()
    return True


def _requantise(op: Any) -> bool:
    """Whether a conversion to bytes gave those that its operand was made of: `bytes(clamp(round(y * factor) + zero))`."""
    out = from_mlir(op.results[0])
    if from_mlir(op.operands[0]).dtype.name != "f32" or out.dtype.name not in BYTES:
        return False
    v, low, high = bounded(op.operands[0])
    zero, added = 0.0, defining(v)
    if isinstance(added, ew.Add) and (c := filled_with(added.operands[1])) is not None:
        zero, v = c, added.operands[0]
    rounded = defining(v)
    product = defining(rounded.operands[0]) if isinstance(rounded, ew.Round) else None
    factor = filled_with(product.operands[1]) if isinstance(product, ew.Mul) else None
    image = _Dequantised.of(product.operands[0]) if product is not None and factor is not None else None
    if (
        image is None
        or factor is None
        or from_mlir(image.codes) != out
        or image.zero != zero
        or (low, high) != BYTES[out.dtype.name]
    ):
        return False
    exact = _FLOATS.tiny <= image.scale <= _FLOATS.max / 512 and abs(image.scale * factor - 1) < _SAME_SCALE
    if exact:
        op.results[0].replace_all_uses_with(image.codes)
        op.operation.erase()
    return exact
