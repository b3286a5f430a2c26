"""Functions of which no more than numbers of bf16 or f16 are made are computed as exactly as these show."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import build
from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.types import from_mlir

__all__ = ["narrow_functions"]

_SHORT: dict[type, type[ew.MathOp]] = {ew.Sigmoid: ew.SigmoidShort}
_NARROW = ("bf16", "f16")


def narrow_functions(module: Module) -> None:
    """Replaces functions by less exact ones where their results, or products of these, are rounded to bf16 or f16 and nothing else
    is made of them: what is left of the difference is seen in three of a thousand numbers of f16, and in fewer of bf16."""
    for block in bodies(module):
        for op in list(walk(block)):
            short = _SHORT.get(type(op))
            if short is not None and _is_rounded_after(op.results[0]):
                with ir.InsertionPoint(op.operation), op.location:
                    op.results[0].replace_all_uses_with(build(short, list(op.operands)).results[0])
                op.operation.erase()


def _is_rounded_after(v: Value) -> bool:
    """Whether all that reads v, of a narrow type or f32, rounds it or products of it: sums could cancel what is exact."""
    name = from_mlir(v).dtype.name
    if name != "f32":
        return name in _NARROW
    readers: list[Any] = [u.owner.operation.opview for u in v.uses]
    return bool(readers) and all(
        isinstance(op, ew.Convert)
        and from_mlir(op.results[0]).dtype.name in _NARROW
        or isinstance(op, ew.Mul)
        and _is_rounded_after(op.results[0])
        for op in readers
    )
