"""Results that a program quantises are bounded once, before they are rounded, so that rounding is the conversion's own."""

from __future__ import annotations

import math
from math import prod
from typing import Any, Final

import numpy as np
import torch

from dhlo.ir.dialect import attr, build, defining
from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import ConvBytes
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, Weight, number
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.cse import erase_dead

__all__ = ["BYTES", "bounded", "filled_with", "round_codes"]

Weights = dict[str, torch.Tensor]

BYTES: Final = {"i8": (-128, 127), "ui8": (0, 255)}
_MOST: Final = float(1 << 23)
"""Integers up to this, and their differences, are numbers of f32."""
_FITS: Final = float(1 << 30)
"""Floats up to this, and their sums with a zero point, have an i32 nearest to them."""
_PRODUCT: Final = 255 * 128
"""The largest product of a byte, less a zero point, and a weight."""
_FAR: Final = 24
"""How many ops are looked at one behind the other."""


def round_codes(module: Module, weights: Weights) -> None:
    """Turns `bytes(clamp(round(y) + zero, low, high))` into `bytes(clamp(nearest(y) + zero, low, high))`, whose bounds of integers
    may be part of the conversion to bytes, or into `bytes(nearest(clamp(y, low - zero, high - zero)) + zero)` where y may be too
    large for that. The bounds take in those of what y is a multiple of (a relu's, say). Every result stays the same, that of NaN
    too, with the weights as they are."""
    for block in bodies(module):
        if any([_rewrite(op, weights) for op in list(walk(block)) if isinstance(op, ew.Convert)]):  # all of them
            erase_dead(block)


def _rewrite(op: Any, weights: Weights) -> bool:
    """Whether the conversion became one of integers."""
    floats, out = from_mlir(op.operands[0]), from_mlir(op.results[0])
    if floats.dtype.name != "f32" or out.dtype.name not in BYTES:
        return False
    v, low, high = bounded(op.operands[0])
    zero, added = 0.0, defining(v)
    if isinstance(added, ew.Add) and (c := filled_with(added.operands[1])) is not None:
        zero, v = c, added.operands[0]
    rounded, (least, most) = defining(v), BYTES[out.dtype.name]
    whole = zero.is_integer() and low.is_integer() and high.is_integer() and abs(zero) <= _MOST
    if not isinstance(rounded, ew.Round) or not whole or not least <= low <= high <= most:
        return False
    y = rounded.operands[0]
    if zero and _magnitude(y, weights) == math.inf:
        return False  # a NaN's integer has other lowest bits with zero than without
    with ir.InsertionPoint(op.operation), op.location:
        y, low, high = _multiple(y, low - zero, high - zero)
        fits, integers = _magnitude(y, weights) <= _FITS, floats.with_dtype("i32")
        made = y if fits else _clamped(y, low, high)
        made = build(ew.Nearest, [made], results=[integers]).results[0]
        if zero:
            made = build(ew.Add, [made, _full(int(zero), integers)]).results[0]
        if fits:
            made = _clamped(made, *(int(np.rint(np.float32(b))) + int(zero) for b in (low, high)))
        made = build(ew.Convert, [made], results=[out]).results[0]
    op.results[0].replace_all_uses_with(made)
    op.operation.erase()
    return True


def _clamped(v: Value, low: float, high: float) -> Value:
    """Within bounds, of which `low` isn't above `high`: of v's type."""
    above = build(ew.Maximum, [v, _full(low, from_mlir(v))]).results[0]
    made: Value = build(ew.Minimum, [above, _full(high, from_mlir(v))]).results[0]
    return made


def _full(value: float, t: TensorType) -> Value:
    made: Value = build(Full, [], {"value": str(value)}, results=[t]).results[0]
    return made


def filled_with(v: Value) -> float | None:
    """The number that fills a tensor of floats, as f32."""
    full = defining(v)
    value = number(attr(full, "value")) if isinstance(full, Full) else None
    return None if value is None else float(np.float32(value))


def bounded(v: Value, low: float = -math.inf, high: float = math.inf) -> tuple[Value, float, float]:
    """What the bounds `low` and `high`, and those that made `v`, are bounds of; and bounds that do as all of these."""
    while isinstance(op := defining(v), (ew.Maximum, ew.Minimum)):
        bound = filled_with(op.operands[1])
        if bound is None or math.isnan(bound):
            break
        if isinstance(op, ew.Maximum):
            low = min(max(low, bound), high)
        else:
            high = max(min(high, bound), low)
        v = op.operands[0]
    return v, low, high


def _multiple(y: Value, low: float, high: float) -> tuple[Value, float, float]:
    """If `y` is a bounded x times a number above 0, that multiple of x itself, with bounds that take in x's: rounding products
    doesn't change their order."""
    product = defining(y)
    factor = filled_with(product.operands[1]) if isinstance(product, ew.Mul) else None
    if factor is None or not 0 < factor < math.inf:
        return y, low, high
    x, least, most = bounded(product.operands[0])
    if x == product.operands[0]:
        return y, low, high
    least, most = (b if math.isinf(b) else float(np.float32(b) * np.float32(factor)) for b in (least, most))
    made: Value = build(ew.Mul, [x, product.operands[1]]).results[0]
    low, high = min(max(low, least), high), max(min(high, most), low)
    return made, low, high


def _magnitude_of_sums(v: Value) -> float:
    """What no integer sum of a convolution of bytes is further from 0 than, as far as its window says; 0 for other values."""
    conv = defining(v)
    if not isinstance(conv, ConvBytes):
        return 0.0
    terms = prod(int(n) for n in from_mlir(conv.operands[1]).shape[1:])
    return float(min(terms * _PRODUCT, 1 << 31))


def _magnitude(v: Value, weights: Weights, far: int = _FAR) -> float:
    """What no element of floats is further from 0 than, nor NaN; infinity if nothing is known."""
    op, constant = defining(v), filled_with(v)
    if constant is not None:
        return abs(constant)
    if far == 0 or op is None:
        return math.inf
    if isinstance(op, ew.Convert) and (given := from_mlir(op.operands[0]).dtype).is_int:
        return _magnitude_of_sums(op.operands[0]) or float(2**given.bits)
    if isinstance(op, Weight):
        w = weights.get(attr(op, "name_"))
        return float(w.abs().max()) if w is not None and w.numel() and bool(w.isfinite().all()) else math.inf
    if isinstance(op, (Broadcast, Reshape, ew.Round)):
        return _magnitude(op.operands[0], weights, far - 1) + isinstance(op, ew.Round)
    if not isinstance(op, (ew.Add, ew.Sub, ew.Mul, ew.Maximum, ew.Minimum)):
        return math.inf
    a, b = (_magnitude(x, weights, far - 1) for x in op.operands)
    most = a * b if isinstance(op, ew.Mul) else a + b
    return most if most < float(torch.finfo(torch.float32).max) / 2 else math.inf
