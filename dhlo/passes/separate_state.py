"""Makes tensors that the program changes into state, not constants any more, so that nothing is folded or packed from them."""

from __future__ import annotations

from dhlo.ir.dialect import attr, build
from dhlo.ir.function import bodies, updates_of
from dhlo.ir.handles import Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops.movement import State, Weight
from dhlo.ir.types import from_mlir

__all__ = ["separate_state"]


def separate_state(module: Module) -> None:
    """Replaces `weight` by `state`, in all functions, for what results of the first are the new content of."""
    blocks = bodies(module)
    names = set(updates_of(blocks[0]).values()) if blocks else set()
    for block in blocks if names else []:
        for op in list(block.operations):
            if isinstance(op, Weight) and attr(op, "name_") in names:
                with ir.InsertionPoint(op.operation), op.location:
                    new = build(State, [], {"name_": attr(op, "name_")}, results=[from_mlir(op.results[0])])
                op.results[0].replace_all_uses_with(new.results[0])
                op.operation.erase()
