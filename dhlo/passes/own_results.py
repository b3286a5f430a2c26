"""Gives every result of a function or region memory of its own: arguments, weights and repeated results are copied."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import Kind, build, defining
from dhlo.ir.function import updates_of
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.complexes import Interleave
from dhlo.ir.ops.elementwise import Copy
from dhlo.ir.ops.movement import Broadcast, Reshape, Slice, Transpose

__all__ = ["own_results"]


def own_results(module: Module) -> None:
    """Inserts `copy` before the terminators of functions and of the regions of control-flow ops."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            _block(block)


def _block(block: Block) -> None:
    ops = list(block.operations)
    for op in ops[:-1]:
        if getattr(op, "kind", None) is Kind.CONTROL:
            for region in op.regions:
                for inner in region.blocks:
                    _block(inner)
    end = ops[-1]
    seen: set[Any] = set()
    updates = updates_of(block)
    kept = {_shown(end.operands[k]) for k in updates}
    for k in sorted(range(len(end.operands)), key=lambda k: k not in updates):  # what is new content keeps its memory
        v = end.operands[k]
        if v in seen or not _computed_here(v, block) or (k not in updates and _shown(v) in kept):
            with ir.InsertionPoint(end.operation), end.location:
                end.operation.operands[k] = _copy(v)
        seen.add(v)


def _copy(v: Value) -> Any:
    """The value once more; complex ones are put together again, since kernels see only their parts."""
    op = defining(v)
    return build(Interleave, list(op.operands)).results[0] if isinstance(op, Interleave) else build(Copy, [v]).results[0]


def _shown(v: Value) -> Any:
    """The value that views lead back to."""
    while isinstance(op := defining(v), (Reshape, Transpose, Slice, Broadcast)):
        v = op.operands[0]
    return v


def _computed_here(v: Value, block: Block) -> bool:
    """Whether views lead back from `v` to an op of this block that computes something."""
    op = defining(_shown(v))
    return op is not None and bool(op.operation.block == block) and op.kind is not Kind.WEIGHT
