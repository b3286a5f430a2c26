"""Makes tensors that the program changes into state, not constants any more, so that nothing is folded or packed from them;
and says which results of the function are the new content of what."""

from __future__ import annotations

from collections.abc import Mapping

from dhlo.ir.dialect import attr, build
from dhlo.ir.handles import Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops.movement import State, Weight
from dhlo.ir.types import from_mlir
from dhlo.ir.updates import Target, mark_updates

__all__ = ["separate_state"]


def separate_state(module: Module, updates: Mapping[int, Target]) -> None:
    """Replaces `weight` by `state` for the names among `updates` (by result number), in all functions, and marks the results of
    the first."""
    names = set(updates.values())
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            for op in list(block.operations):
                if isinstance(op, Weight) and attr(op, "name_") in names:
                    with ir.InsertionPoint(op.operation), op.location:
                        new = build(State, [], {"name_": attr(op, "name_")}, results=[from_mlir(op.results[0])])
                    op.results[0].replace_all_uses_with(new.results[0])
                    op.operation.erase()
    if updates:
        mark_updates(module.body.operations[0], updates)
