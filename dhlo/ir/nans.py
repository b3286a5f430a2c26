"""Which NaNs values may hold: rounding to bf16 asks."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch

from dhlo.ir.coded import is_constant
from dhlo.ir.dialect import attr, defining, number
from dhlo.ir.handles import Value
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Conv, Matmul
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, Slice, Transpose
from dhlo.ir.types import from_mlir

__all__ = ["ACTIVATIONS", "KEEPS_PLAIN", "has_plain_nans", "is_number", "with_plain_nans"]

ACTIVATIONS = (ew.Sigmoid, ew.SigmoidShort, ew.Tanh, ew.Erf, ew.NormalCdf)
KEEPS_PLAIN = (ew.Add, ew.Sub, ew.Mul, ew.Div, ew.Maximum, ew.Minimum, ew.Neg, ew.Abs, ew.Select, ew.Sqrt, *ACTIVATIONS)
"""Elementwise ops whose results have plain NaNs where their float operands have: those that processors pass on or make."""
_KEEPS = (*KEEPS_PLAIN, Conv, Matmul, Broadcast, Reshape, Slice, Transpose)
# How many ops are looked at one behind the other.
_FAR = 24


def is_number(v: Value) -> bool:
    """Whether a value is a number that is known."""
    op: Any = defining(v)
    return isinstance(op, Full) and number(attr(op, "value")) is not None


def has_plain_nans(v: Value, known: Collection[Value] = (), far: int = _FAR) -> bool:
    """Whether the f32 numbers of a value are known to have no NaNs but plain ones: quiet ones whose lower sixteen bits are zero. So
    are all NaNs that started as bf16 or that arithmetic made; those of memory may be others, but for those of `known` values."""
    dtype, op = from_mlir(v).dtype, defining(v)
    if dtype.name == "bf16" or v in known:
        return True
    if dtype.name != "f32" or op is None or far == 0:
        return False
    if isinstance(op, ew.Convert):
        source = op.operands[0]
        return not from_mlir(source).dtype.is_float or has_plain_nans(source, known, far - 1)
    if is_number(v):
        return True
    floats = list(op.operands)[isinstance(op, ew.Select) :]
    if isinstance(op, Conv) and is_constant(floats[1]):
        floats = floats[:1]  # its weights are packed `with_plain_nans`
    return isinstance(op, _KEEPS) and all(has_plain_nans(x, known, far - 1) for x in floats)


def with_plain_nans(x: torch.Tensor) -> torch.Tensor:
    """A constant without NaNs but plain ones."""
    nans = x.isnan()
    return x.masked_fill(nans, math.nan) if bool(nans.any()) else x
