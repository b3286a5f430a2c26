"""Gives every result of a function or region memory of its own: arguments, weights and repeated results are copied."""

from __future__ import annotations

from typing import Any

from dhlo.dialect import Kind, build, defining
from dhlo.mlir import ir
from dhlo.ops.elementwise import Copy
from dhlo.ops.movement import Broadcast, Reshape, Slice, Transpose

__all__ = ["own_results"]


def own_results(module: Any) -> None:
    """Inserts `copy` before the terminators of functions and of the regions of control-flow ops."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            _block(block)


def _block(block: Any) -> None:
    ops = list(block.operations)
    for op in ops[:-1]:
        if getattr(op, "kind", None) is Kind.CONTROL:
            for region in op.regions:
                for inner in region.blocks:
                    _block(inner)
    end = ops[-1]
    seen: set[Any] = set()
    for k, v in enumerate(end.operands):
        if v in seen or not _computed_here(v, block):
            with ir.InsertionPoint(end.operation), end.location:
                end.operation.operands[k] = build(Copy, [v]).results[0]
        seen.add(v)


def _computed_here(v: Any, block: Any) -> bool:
    """Whether following views back from `v` ends at an op of this block that computes something."""
    while (op := defining(v)) is not None:
        if op.operation.block != block:
            return False
        if not isinstance(op, (Reshape, Transpose, Slice, Broadcast)):
            return op.kind is not Kind.WEIGHT
        v = op.operands[0]
    return False
