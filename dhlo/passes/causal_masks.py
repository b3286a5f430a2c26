"""Lets attention know of masks that hide what comes later: keys that no query of a block may see aren't read."""

from __future__ import annotations

from dhlo.ir.dialect import attr, build
from dhlo.ir.handles import Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import Attention, extra
from dhlo.ir.symbols import show
from dhlo.ir.types import from_mlir
from dhlo.passes.positions import seen

__all__ = ["causal_masks"]


def causal_masks(module: Module) -> None:
    """Where a mask says that a query sees no key after its own, attention becomes causal; a mask that says nothing else goes."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            for op in list(block.operations):
                if isinstance(op, Attention) and extra(op, 4) is not None and not attr(op, "causal"):
                    _rewrite(op)


def _rewrite(op: Attention) -> None:
    q, k, v, mask, *sinks = op.operands
    found = seen(mask) if from_mlir(mask).dtype.is_bool else None
    if found is None or found.past is None:
        return
    with ir.InsertionPoint(op.operation), op.location:
        kept = [] if found.whole and not found.window else [mask]
        attrs = {"scale": attr(op, "scale"), "softcap": attr(op, "softcap"), "causal": True, "past": show(found.past)}
        new = build(Attention, [q, k, v, *kept, *sinks], attrs).results[0]
    op.results[0].replace_all_uses_with(new)
    op.operation.erase()
