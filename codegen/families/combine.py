"""How values are combined by each kind of reduction: of two, and across the lanes of a vector."""

from __future__ import annotations

from collections.abc import Callable

from dhlo.codegen.kernel_ir.builder import I1, Fn, V
from dhlo.ir.types import DType

__all__ = ["across", "combine", "identity_of", "raised"]


def identity_of(how: str, dtype: DType) -> float | int:
    """The value that changes nothing."""
    if how in ("sum", "any", "xor"):
        return 0
    if how in ("prod", "all"):
        return 1
    if dtype.is_float:
        return float("inf") if how == "min" else float("-inf")
    if dtype.is_bool:
        return 0 if how == "max" else 1
    bits = dtype.bytes * 8
    if dtype.name == "ui8":
        return 0 if how == "max" else 255
    return -(1 << bits - 1) if how == "max" else (1 << bits - 1) - 1


def combine(fn: Fn, how: str, a: V, b: V) -> V:
    if a.elem == I1:
        return fn.or_(a, b) if how in ("any", "max", "sum") else fn.and_(a, b)
    if how == "maxnum":
        return raised(fn, a, b)
    ops: dict[str, Callable[[V, V], V]] = {
        "sum": fn.add,
        "prod": fn.mul,
        "max": fn.max,
        "min": fn.min,
        "any": fn.or_,
        "all": fn.and_,
        "xor": fn.xor,
    }
    return ops[how](a, b)


def raised(fn: Fn, a: V, b: V) -> V:
    """max(a, b) of `a` that isn't NaN; NaN in `b` is ignored. One instruction, whatever maxima make of NaN."""
    return fn.select(fn.cmp("gt", b, a), b, a) if fn.target.maxima_choose else fn.maxnum(a, b)


def across(fn: Fn, how: str, x: V) -> V:
    """Combines the lanes of a vector."""
    if x.elem == I1:
        return fn.reduce("or" if how in ("any", "max", "sum") else "and", x)
    if x.is_float and how in ("max", "min", "maxnum"):  # LLVM takes the last four lanes one by one
        half = x.lanes // 2
        low, high = list(range(half)), list(range(half, x.lanes))
        parts = (fn.extract(x, 0), fn.extract(x, 1)) if half == 1 else (fn.shuffle(x, x, low), fn.shuffle(x, x, high))
        both = combine(fn, how, *parts)
        return both if half == 1 else across(fn, how, both)
    kinds = {"sum": "add", "prod": "mul", "max": "maxsi", "min": "minsi", "any": "or", "all": "and", "xor": "xor"}
    return fn.reduce(kinds[how], x)
