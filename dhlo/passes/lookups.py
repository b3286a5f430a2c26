"""Lookups in tables of other forms than their readers want: the rows that are found take that form."""

from __future__ import annotations

from typing import Any

from dhlo.ir.handles import Value
from dhlo.ir.ops.movement import Take
from dhlo.ir.types import from_mlir

__all__ = ["take_from"]


def take_from(take: Take, table: Value) -> list[Any]:
    """Makes a lookup one in another table of the same shape. Returns the uses of its result, which now has that table's dtype: they
    want what is made of it."""
    uses = list(take.results[0].uses)
    take.operation.operands[0] = table
    take.results[0].set_type(from_mlir(take.results[0]).with_dtype(from_mlir(table).dtype.name).mlir())
    return uses
