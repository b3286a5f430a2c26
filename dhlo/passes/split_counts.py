"""Splits ops whose results' sizes depend on data: one counts, and memory is found for what the other one fills."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import attr, build
from dhlo.ir.function import bodies, walk
from dhlo.ir.mlir import ir
from dhlo.ir.ops.control import Nonzero
from dhlo.ir.ops.host import CountNonzero, FillNonzero, FillUnique, FindUnique
from dhlo.ir.ops.lookup import Unique
from dhlo.ir.types import from_mlir

__all__ = ["split_counts"]


def split_counts(module: Any) -> None:
    """Writes `nonzero` as count_nonzero and fill_nonzero, `unique` as find_unique and fill_unique."""
    for block in bodies(module):
        for op in list(walk(block)):
            if isinstance(op, (Nonzero, Unique)):
                with ir.InsertionPoint(op.operation), op.location:
                    results = _nonzero(op) if isinstance(op, Nonzero) else _unique(op)
                for old, new in zip(op.results, results, strict=True):
                    old.replace_all_uses_with(new)
                op.operation.erase()


def _nonzero(op: Any) -> list[Any]:
    name, x = attr(op, "symbol"), op.operands[0]
    build(CountNonzero, [x], {"symbol": name})
    return list(build(FillNonzero, [x], {"number": name}, results=[from_mlir(op.results[0])]).results)


def _unique(op: Any) -> list[Any]:
    name, x = attr(op, "symbol"), op.operands[0]
    inverse = build(FindUnique, [x], {"symbol": name}).results[0]
    values, counts = build(FillUnique, [x, inverse], {"number": name}).results
    return [values, inverse, counts]
