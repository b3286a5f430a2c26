"""Makes tensors that the program changes into state: not constants any more, so that nothing is folded or packed from them."""

from __future__ import annotations

from typing import Any

from dhlo.dialect import attr, build
from dhlo.mlir import ir
from dhlo.ops.movement import State, Weight
from dhlo.types import from_mlir

__all__ = ["separate_state"]


def separate_state(module: Any, names: set[str]) -> None:
    """Replaces `weight` by `state` for the given names, in all functions."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            for op in list(block.operations):
                if isinstance(op, Weight) and attr(op, "name_") in names:
                    with ir.InsertionPoint(op.operation), op.location:
                        new = build(State, [], {"name_": attr(op, "name_")}, results=[from_mlir(op.results[0])])
                    op.results[0].replace_all_uses_with(new.results[0])
                    op.operation.erase()
