"""PyTorch's type promotion over tensors, 0-dim tensors and Python (also symbolic) scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import Boolean

from dhlo.ir.types import DTYPES, DType, TensorType, from_torch_dtype

__all__ = ["is_boolean", "promote", "scalar_dtype"]


def is_boolean(x: Any) -> bool:
    """Is it a truth value? (Symbols of sympy are Boolean by class, but ours stand for numbers.)"""
    return isinstance(x, bool) or (isinstance(x, Boolean) and not isinstance(x, sympy.Expr))


def scalar_dtype(x: Any) -> torch.dtype:
    """The dtype that a Python or symbolic scalar counts as."""
    if is_boolean(x):
        return torch.bool
    if isinstance(x, int):
        return torch.int64
    if isinstance(x, complex):
        return torch.complex64
    if isinstance(x, sympy.Expr) and x.is_integer:
        return torch.int64
    return torch.float32


def _category(d: torch.dtype) -> int:
    return 0 if d == torch.bool else 3 if d.is_complex else 2 if d.is_floating_point else 1


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """combine_categories of ATen's TypeProperties.cpp."""
    if higher is None or lower is None:
        return higher or lower
    if _category(higher) == 3:
        return higher
    if _category(higher) == 2:
        if _category(lower) == 3:
            return higher.to_complex()
        return higher
    if higher == torch.bool or _category(lower) >= 2:
        return torch.promote_types(higher, lower)
    return higher


def _join(a: torch.dtype | None, b: torch.dtype) -> torch.dtype:
    return b if a is None else torch.promote_types(a, b)


def promote(operands: Sequence[TensorType | Any]) -> DType:
    """Result dtype of an elementwise op (torch.result_type): TensorTypes are tensors, anything else is a scalar."""
    full: torch.dtype | None = None
    zero: torch.dtype | None = None
    wrapped: torch.dtype | None = None
    for x in operands:
        if not isinstance(x, TensorType):
            wrapped = _join(wrapped, scalar_dtype(x))
        elif x.rank == 0:
            zero = _join(zero, x.dtype.torch)
        else:
            full = _join(full, x.dtype.torch)
    result = _combine(full, _combine(zero, wrapped))
    return from_torch_dtype(result) if result is not None else DTYPES["f32"]
