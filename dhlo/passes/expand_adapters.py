"""Takes products with adapters apart: the low-rank products of rows that have one, which are added as the product is stored."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import attr, build
from dhlo.ir.function import bodies
from dhlo.ir.handles import Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.adapters import Adapt, ChosenRows, LowRank
from dhlo.ir.ops.movement import Full
from dhlo.ir.types import from_mlir

__all__ = ["expand_adapters"]


def expand_adapters(module: Module) -> None:
    """Writes what adapters add to a product as ops of its own. Rows without an adapter take nothing but a look at that."""
    for block in bodies(module):
        has: dict[Any, Any] = {}  # by argument: which rows have an adapter
        for op in list(block.operations):
            if isinstance(op, Adapt):
                _expand(op, has)


def _expand(op: Any, has: dict[Any, Any]) -> None:
    y, x, weights, adapters = op.operands
    with ir.InsertionPoint(op.operation), op.location:
        if adapters not in has:
            t = from_mlir(adapters)
            none = build(Full, [], {"value": "0"}, results=[t]).results[0]
            has[adapters] = build(ew.Ge, [adapters, none]).results[0]
        added = build(LowRank, [x, weights, adapters], {n: attr(op, n) for n in ("at", "columns", "rank")}).results[0]
        dtype = from_mlir(y).dtype
        added = build(ChosenRows, [added, has[adapters]]).results[0]
        if from_mlir(added).dtype != dtype:
            added = build(ew.Convert, [added], results=[from_mlir(y)]).results[0]
        z = build(ew.Add, [y, added]).results[0]
    op.results[0].replace_all_uses_with(z)
    op.operation.erase()
