"""Merges equal ops, through upstream's pass, and erases ops that nobody reads."""

from __future__ import annotations

from dhlo.ir import mlir
from dhlo.ir.dialect import Kind
from dhlo.ir.handles import Block, Module

__all__ = ["cse", "erase_dead"]


def cse(module: Module) -> None:
    """Merges equal ops and erases dead ones."""
    mlir.PassManager.parse("builtin.module(cse)").run(module.operation)
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            erase_dead(block)


def erase_dead(block: Block) -> None:
    """Last ones first, so that what only they read goes too (upstream's pass leaves such chains)."""
    for op in reversed(list(block.operations)):
        for region in op.operation.regions:
            for inner in region.blocks:
                erase_dead(inner)
        kind = getattr(op, "kind", Kind.CONTROL)
        if kind not in (Kind.SYMBOL, Kind.CONTROL, Kind.GROUP, Kind.HOST) and not any(True for v in op.results for _ in v.uses):
            op.operation.erase()
